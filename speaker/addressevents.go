package speaker

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// tellAddresses tells which addresses the network hears of, and no longer. While
// no router listens, nothing is news: the sessions are.
func (t *told) tellAddresses(was told, is scene, limit int) []event {
	routers := is.established()
	left := sortedset.Minus(was.announced, is.announced)
	var came []netip.Addr
	if len(routers) > 0 {
		came = sortedset.Minus(sortedset.Minus(is.announced, was.announced), was.adopted)
		t.announced = is.announced
	} else {
		t.announced = sortedset.Intersect(was.announced, is.announced)
	}
	if is.at.Before(t.presumed) {
		t.adopted = sortedset.Minus(was.adopted, t.announced)
	}
	var all []event
	if len(came)+len(left) <= limit {
		for _, a := range left {
			all = append(all, is.withdrawn(a, was.desired, routers)...)
		}
		for _, a := range came {
			all = append(all, is.came(a)...)
		}
		return all
	}
	return []event{is.event(is.node(), false, eventAnnouncementsChanged, "Announce", fmt.Sprintf(
		"began to announce %d addresses and withdrew %d; it announces %d now: `fanfare status` there says which", len(came), len(left), len(is.announced)))}
}

// tellAnswers tells for which addresses this node has begun to answer over L2, and for
// which it has stopped.
func (t *told) tellAnswers(was told, is scene, limit int) (all []event) {
	t.answered = map[netip.Addr]string{}
	changes := 0
	for _, a := range is.answers {
		if a.Phase != l2.Held {
			continue
		}
		t.answered[a.Addr] = strings.Join(a.Interfaces, ", ")
		if _, before := was.answered[a.Addr]; before {
			continue
		}
		changes++
		for _, name := range is.desired.Holders(a.Addr) {
			all = append(all, is.event(is.service(name), false, eventAnnounced, "Announce", fmt.Sprintf("answers for %s on %s", a.Addr, t.answered[a.Addr])))
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(was.answered), netip.Addr.Compare) {
		if _, still := t.answered[a]; still {
			continue
		}
		changes++
		for _, name := range was.desired.Holders(a) {
			if ref, before := is.service(name), (scene{desired: was.desired}).service(name); ref.Name != "" && ref.UID == before.UID {
				all = append(all, is.event(ref, false, eventWithdrawn, "Withdraw", fmt.Sprintf("stopped to answer for %s: %s", a, is.why(a, name, "l2"))))
			}
		}
	}
	if changes > limit {
		return []event{is.event(is.node(), false, eventAnnouncementsChanged, "Announce", fmt.Sprintf(
			"began or stopped to answer for %d addresses; it answers for %d now: `fanfare status` there says which", changes, len(t.answered)))}
	}
	return all
}

// tellConflicts tells who else uses addresses.
func (t *told) tellConflicts(was told, is scene, limit int) (all []event) {
	t.conflicts = map[netip.Addr]int{}
	for _, a := range is.answers {
		if a.Conflict == nil {
			continue
		}
		// Once it is told, more of the same are no news until it was over.
		t.conflicts[a.Addr] = a.Conflict.Count
		if was.conflicts[a.Addr] > 0 || len(all) >= limit {
			continue
		}
		for _, name := range is.desired.Holders(a.Addr) {
			all = append(all, is.event(is.service(name), true, eventAddressInUse, "Announce", fmt.Sprintf("finds %s in use: %s", a.Addr, a.Conflict)))
		}
	}
	return all
}

// came is an event on each Service that holds addr.
func (is scene) came(addr netip.Addr) (all []event) {
	heard, deaf := audience(addr, is.desired.RoutesOf(addr), is.sessions)
	what := fmt.Sprintf("announces %s", addr)
	switch {
	case len(heard) > 0:
		what += " to " + cluster.Enumerate(heard)
	case len(deaf) > 0: // its routers are others than those that listen
		what = fmt.Sprintf("announces %s, and no router hears it yet: %s", addr, strings.Join(deaf, "; "))
	}
	for _, name := range is.desired.Holders(addr) {
		all = append(all, is.event(is.service(name), false, eventAnnounced, "Announce", what))
	}
	return all
}

// withdrawn is an event on each Service that held addr and that is there still:
// nobody asks for those of one that is gone.
func (is scene) withdrawn(addr netip.Addr, was *plan.Desired, routers []bgp.SessionStatus) (all []event) {
	from := ""
	if len(routers) > 0 {
		var names []string
		for _, s := range routers {
			names = append(names, s.Name)
		}
		from = " from " + cluster.Enumerate(names)
	}
	for _, name := range was.Holders(addr) {
		ref, before := is.service(name), scene{desired: was}.service(name)
		if ref.Name == "" || ref.UID != before.UID {
			continue
		}
		all = append(all, is.event(ref, false, eventWithdrawn, "Withdraw", fmt.Sprintf("withdrew %s%s: %s", addr, from, is.why(addr, name, "bgp"))))
	}
	return all
}

// why is why addr is not announced by a protocol for the Service.
func (is scene) why(addr netip.Addr, name cluster.Name, protocol string) string {
	a := is.desired.Address(addr)
	if a == nil || !slices.Contains(a.Services, name) {
		return "the Service does not hold it any more"
	}
	for _, r := range a.Reasons {
		if r.Protocol == protocol && r.Service == name && !r.Code.Announces() {
			return strings.TrimPrefix(r.Message, "not announced: ")
		}
	}
	for _, s := range is.answers {
		if protocol == "l2" && s.Addr == addr && s.Reason != "" {
			return s.Reason
		}
	}
	switch {
	case is.err != nil:
		return is.err.Error()
	case protocol == "l2":
		return "its speaker is about to stop"
	default:
		return "no session can carry it"
	}
}

func (is scene) established() (up []bgp.SessionStatus) {
	for _, s := range is.sessions {
		if s.State == bgp.Established {
			up = append(up, s)
		}
	}
	return up
}
