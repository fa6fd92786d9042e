package speaker

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/event"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
)

// addressEvents reports addresses that began or stopped being announced by BGP. Without any
// session nothing changes for the network, and the sessions have Events of their own.
func (r *reported) addressEvents(was reported, now observation, limit int) []event.Event {
	routers := now.established()
	left, came := sortedset.Changes(was.announced, now.announced, netip.Addr.Compare)
	if len(routers) > 0 {
		came = sortedset.Minus(came, was.adopted)
		r.announced = now.announced
	} else {
		came, r.announced = nil, sortedset.Without(was.announced, left, netip.Addr.Compare)
	}
	if now.at.Before(r.presumedUntil) {
		r.adopted = slices.DeleteFunc(slices.Clone(was.adopted),
			func(a netip.Addr) bool { return sortedset.HasAddr(r.announced, a) })
	}
	var all []event.Event
	if len(came)+len(left) <= limit {
		for _, a := range left {
			what := fmt.Sprintf("withdrew %s%s", a, from(routers))
			all = append(all, now.withdrawnEvents(a, was.desired, "bgp", what)...)
		}
		for _, a := range came {
			all = append(all, now.announcedEvents(a)...)
		}
		return all
	}
	return []event.Event{now.event(now.thisNodeRef(), false, eventAnnouncementsChanged, "Announce", fmt.Sprintf(
		"announced %d addresses and withdrew %d; it announces %d now: run `fanfare status` there for the list",
		len(came), len(left), now.announced.Len()))}
}

// l2Events reports addresses that this node began or stopped answering for.
func (r *reported) l2Events(was reported, now observation, limit int) (all []event.Event) {
	r.answered = map[netip.Addr]string{}
	changes := 0
	for _, a := range now.l2Statuses {
		if a.Phase != l2.Held {
			continue
		}
		r.answered[a.Addr] = strings.Join(a.Interfaces, ", ")
		if _, before := was.answered[a.Addr]; before {
			continue
		}
		changes++
		what := fmt.Sprintf("answers for %s on %s", a.Addr, r.answered[a.Addr])
		all = append(all, now.holderEvents(a.Addr, false, eventAnnounced, what)...)
	}
	for _, a := range slices.SortedFunc(maps.Keys(was.answered), netip.Addr.Compare) {
		if _, still := r.answered[a]; still {
			continue
		}
		changes++
		all = append(all, now.withdrawnEvents(a, was.desired, "l2", "stopped answering for "+a.String())...)
	}
	if changes > limit {
		return []event.Event{now.event(now.thisNodeRef(), false, eventAnnouncementsChanged, "Announce", fmt.Sprintf(
			"began or stopped answering for %d addresses; it answers for %d now: run `fanfare "+
				"status` there for the list", changes, len(r.answered)))}
	}
	return all
}

// conflictEvents reports other hosts that use an address.
func (r *reported) conflictEvents(was reported, now observation, limit int) (all []event.Event) {
	r.conflicts = map[netip.Addr]int{}
	for _, a := range now.l2Statuses {
		if a.Conflict == nil {
			continue
		}
		// Further packets of the same conflict cause no Event until it is over.
		r.conflicts[a.Addr] = a.Conflict.Count
		if was.conflicts[a.Addr] > 0 || len(all) >= limit {
			continue
		}
		what := fmt.Sprintf("finds %s in use: %s", a.Addr, a.Conflict)
		all = append(all, now.holderEvents(a.Addr, true, eventAddressInUse, what)...)
	}
	return all
}

// announcedEvents returns an event for each Service that holds addr.
func (now observation) announcedEvents(addr netip.Addr) []event.Event {
	receiving, missing := receivers(addr, now.desired.RoutesOf(addr), now.sessions)
	what := fmt.Sprintf("announces %s", addr)
	switch {
	case len(receiving) > 0:
		what += " to " + cluster.Enumerate(receiving)
	case len(missing) > 0: // the routers for it have no session
		what = fmt.Sprintf("has %s to announce, and no router has the route yet: %s", addr, strings.Join(missing, "; "))
	}
	return now.holderEvents(addr, false, eventAnnounced, what)
}

// holderEvents returns an event for each Service that holds addr.
func (now observation) holderEvents(addr netip.Addr, warning bool, reason eventReason, what string) []event.Event {
	var all []event.Event
	for _, name := range now.desired.Holders(addr) {
		all = append(all, now.event(serviceRef(now.desired, name), warning, reason, "Announce", what))
	}
	return all
}

// withdrawnEvents returns an event for each Service that held addr and still exists: what, and why.
func (now observation) withdrawnEvents(addr netip.Addr, was *plan.Desired, protocol, what string) (all []event.Event) {
	for _, name := range was.Holders(addr) {
		ref, before := serviceRef(now.desired, name), serviceRef(was, name)
		if ref.Name != "" && ref.UID == before.UID {
			why := now.whyWithdrawn(addr, name, protocol)
			all = append(all, now.event(ref, false, eventWithdrawn, "Withdraw", what+": "+why))
		}
	}
	return all
}

// from names routers that no longer have a route, as the end of a sentence.
func from(routers []bgp.SessionStatus) string {
	var names []string
	for _, s := range routers {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return " from " + cluster.Enumerate(names)
}

// whyWithdrawn returns the reason why a protocol does not announce addr for a Service.
func (now observation) whyWithdrawn(addr netip.Addr, name cluster.Name, protocol string) string {
	a := now.desired.Address(addr)
	if a == nil || !slices.Contains(a.Services, name) {
		return "the Service no longer holds it"
	}
	for _, r := range now.desired.ReasonsOf(a) {
		if r.Protocol == protocol && r.Service == name && !r.Code.Announces() {
			return strings.TrimPrefix(r.Message, "not announced: ")
		}
	}
	for _, s := range now.l2Statuses {
		if protocol == "l2" && s.Addr == addr && s.Reason != "" {
			return s.Reason
		}
	}
	switch {
	case now.err != nil:
		return now.err.Error()
	case protocol == "l2":
		return "its speaker is about to stop"
	default:
		return "no session can advertise it"
	}
}

// established returns the sessions that can carry routes.
func (now observation) established() (up []bgp.SessionStatus) {
	for _, s := range now.sessions {
		if s.State == bgp.Established {
			up = append(up, s)
		}
	}
	return up
}
