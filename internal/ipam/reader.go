package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// NewReader returns a Source for speakers of a cluster with a controller. Its Assignments are those
// of inner that an AddressClaim confirms: any other address in a Service's status was written by
// another implementation, and announcing it would divert that one's traffic. An address of which
// only the claim names the Service is assigned, too, if the status ever had one: another controller
// has overwritten the status, or the address is about to change. Its
// Refusals say what was left out or overwritten, and which Services wait for the controller. Its
// Unclaimed are the addresses without a claim.
//
// If neither a status nor a claim has changed, a snapshot shares both with the previous one;
// otherwise only changed ones are checked.
func NewReader(inner cluster.Source) cluster.Source { return &reader{inner: inner} }

// A reader caches the last snapshot that it returned: Snapshot is called for each change of any
// object, and usually neither a status nor a claim has changed.
type reader struct {
	inner cluster.Source

	mu      sync.Mutex
	in, out *cluster.Snapshot // nil at first
	// loose are the addresses of claims that name a Service and that its status lacks.
	loose map[cluster.Name][]netip.Addr
}

// Changed is the inner Source's, because the assignments depend on nothing else.
func (r *reader) Changed() <-chan struct{} { return r.inner.Changed() }

// Snapshot returns the same pointer while the inner Source does.
func (r *reader) Snapshot() *cluster.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.inner.Snapshot()
	if in == r.in {
		return r.out
	}
	last := r.out
	if last == nil {
		r.in, last = &cluster.Snapshot{}, &cluster.Snapshot{}
	}
	out := *in
	specs := changedSpecs(r.in.Services, in.Services)
	changed := r.changedAssignments(in, specs)
	proven := len(r.loose) != 0 // perhaps: what only claims prove
	r.updateLoose(in, changed)
	if proven || len(r.loose) != 0 {
		out.Assignments = patchConfirmed(in, last.Assignments, changed)
	} else {
		out.Assignments = confirmed(r.in, last, in, changed)
	}
	out.Refusals = r.refusals(in, last.Refusals, specs, changed)
	out.Unclaimed = patchUnclaimed(in, last.Unclaimed, changed)
	r.in, r.out = in, &out
	return r.out
}

// changedAssignments returns the assignments that differ from those of the last snapshot, that claims
// would prove, or whose claims or Services differ, sorted.
func (r *reader) changedAssignments(in *cluster.Snapshot, specs []cluster.Name) []cluster.Assignment {
	var changed []cluster.Assignment
	for a := range r.in.Assignments.Differences(in.Assignments) {
		changed = append(changed, a)
	}
	for c := range r.in.Claims.Differences(in.Claims) {
		changed = append(changed, in.AssignmentsOf(c.Addr)...)
		for _, h := range c.Holders {
			changed = append(changed, cluster.Assignment{Addr: c.Addr, Service: h.Name})
		}
	}
	if !slices.Equal(r.in.Pools, in.Pools) {
		specs = slices.AppendSeq(slices.Clone(specs), maps.Keys(r.loose))
	}
	for _, name := range specs {
		for _, a := range r.loose[name] {
			changed = append(changed, cluster.Assignment{Addr: a, Service: name})
		}
	}
	slices.SortFunc(changed, cluster.Assignment.Compare)
	return slices.CompactFunc(changed, func(a, b cluster.Assignment) bool { return a.Compare(b) == 0 })
}

// updateLoose finds the loose addresses among changed assignments.
func (r *reader) updateLoose(in *cluster.Snapshot, changed []cluster.Assignment) {
	for _, a := range changed {
		_, written := in.Assignments.Get(a)
		had := slices.Index(r.loose[a.Service], a.Addr)
		switch is := !written && claims(in, a); {
		case is && had < 0:
			if r.loose == nil {
				r.loose = map[cluster.Name][]netip.Addr{}
			}
			r.loose[a.Service] = append(r.loose[a.Service], a.Addr)
		case !is && had >= 0:
			if r.loose[a.Service] = slices.Delete(r.loose[a.Service], had, had+1); len(r.loose[a.Service]) == 0 {
				delete(r.loose, a.Service)
			}
		}
	}
}

// confirmed returns the assignments of in that claims confirm, if no claim proves another one. It
// checks only differences from the snapshot was, whose result is in last.
func confirmed(was, last, in *cluster.Snapshot, changed []cluster.Assignment) cluster.Assignments {
	unclaimed := func(a cluster.Assignment) bool {
		_, there := in.Assignments.Get(a)
		return there && !claims(in, a)
	}
	if len(changed) > 0 && last.Assignments.Len() == was.Assignments.Len() && !slices.ContainsFunc(changed, unclaimed) {
		return in.Assignments // all are confirmed, as nearly always, so no copy is needed
	}
	return patchConfirmed(in, last.Assignments, changed)
}

// patchConfirmed returns the confirmed assignments. Only those in changed may differ from before.
func patchConfirmed(in *cluster.Snapshot, confirmed cluster.Assignments,
	changed []cluster.Assignment) cluster.Assignments {
	return confirmed.Patch(changed, func(key cluster.Assignment) (cluster.Assignment, bool) {
		if a, found := in.Assignments.Get(key); found {
			return a, claims(in, a)
		}
		return proven(in, key)
	})
}

// proven returns the assignment of an address of which only the claim names the Service. While the
// status is empty as in a new Service, the claim may be of an earlier one of that name.
func proven(in *cluster.Snapshot, key cluster.Assignment) (a cluster.Assignment, is bool) {
	if s := in.Service(key.Service); s == nil || !claims(in, key) ||
		!s.Reported.Assigned && len(s.Status) == 0 && s.StatusHost == "" {
		return a, false
	}
	a = cluster.Assignment{Addr: key.Addr, Service: key.Service, Pool: cluster.PoolOf(in.Pools, key.Addr)}
	if a.Pool == "" {
		c := in.Claim(key.Addr)
		a.From = cluster.Origin{Pool: c.Pool, Announce: c.Announce}
	}
	return a, true
}

// patchUnclaimed returns the addresses without a claim. Only those in changed may differ from
// before.
func patchUnclaimed(in *cluster.Snapshot, unclaimed []netip.Addr, changed []cluster.Assignment) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range changed {
		addrs = append(addrs, a.Addr)
	}
	addrs = slices.Compact(addrs)
	equal := func(a, b netip.Addr) bool { return a == b }
	return sortedset.Patch(unclaimed, addrs, netip.Addr.Compare, equal, func(i int) (netip.Addr, bool) {
		return addrs[i], in.Claim(addrs[i]) == nil && len(in.AssignmentsOf(addrs[i])) > 0
	})
}

// refusals returns all Reasons, recomputed for the named Services and those with changed assignments;
// last itself if none of them has one.
func (r *reader) refusals(in *cluster.Snapshot, last []cluster.Reason, specs []cluster.Name,
	changed []cluster.Assignment) []cluster.Reason {
	names := map[cluster.Name]bool{}
	for _, name := range specs {
		names[name] = true
	}
	for _, a := range changed {
		names[a.Service] = true
	}
	named := func(r cluster.Reason) bool { return names[r.Service] }
	var why []cluster.Reason
	for name := range names {
		if s := in.Service(name); s != nil {
			why = append(why, r.refusalsOf(in, s)...)
		}
	}
	if len(why) == 0 && !slices.ContainsFunc(last, named) {
		return last
	}
	why = append(slices.DeleteFunc(slices.Clone(last), named), why...)
	slices.SortFunc(why, func(a, b cluster.Reason) int {
		return cmp.Or(a.Service.Compare(b.Service), a.VIP.Compare(b.VIP))
	})
	return why
}

// refusalsOf returns which addresses in the status of a Service no claim confirms, which address a
// claim proves in spite of the status, or what a Service without addresses waits for.
func (r *reader) refusalsOf(in *cluster.Snapshot, s *cluster.Spec) (why []cluster.Reason) {
	for _, a := range r.loose[s.Name] {
		if !overwritten(in, s) {
			break // the controller is about to change or to release the address
		}
		if _, is := proven(in, cluster.Assignment{Addr: a, Service: s.Name}); is {
			why = append(why, cluster.Reason{VIP: a, Service: s.Name, Protocol: "ipam", Code: cluster.StatusOverwritten,
				Message: fmt.Sprintf(
					"the AddressClaim says that %s has %s, and the status says %s: the claim counts; %s", s.Name, a,
					statusText(s), reportedText(s))})
		}
	}
	if len(why) != 0 {
		return why
	}
	for _, a := range s.Status {
		if !claims(in, cluster.Assignment{Addr: a, Service: s.Name}) {
			why = append(why, cluster.Reason{VIP: a, Service: s.Name, Protocol: "ipam", Code: cluster.NotOurs,
				Message: fmt.Sprintf(
					"the status says %s, and no AddressClaim that %s holds it: another implementation gave it, or the "+
						"controller has yet to claim it", a, s.Name)})
		}
	}
	if len(s.Status) == 0 {
		why = append(why, waiting(s))
	}
	return why
}

// overwritten reports whether the status of a Service lacks all addresses, or has one that no claim
// confirms.
func overwritten(in *cluster.Snapshot, s *cluster.Spec) bool {
	return len(s.Status) == 0 || s.StatusHost != "" ||
		slices.ContainsFunc(s.Status, func(a netip.Addr) bool {
			return !claims(in, cluster.Assignment{Addr: a, Service: s.Name})
		})
}

// statusText lists what the status of a Service says.
func statusText(s *cluster.Spec) string {
	var all []string
	for _, a := range s.Status {
		all = append(all, a.String())
	}
	if s.StatusHost != "" {
		all = append(all, s.StatusHost)
	}
	return cmp.Or(cluster.Enumerate(all), "no address")
}

// waiting returns why a Service has no address, in the controller's words if there are any.
func waiting(s *cluster.Spec) cluster.Reason {
	return cluster.Reason{Service: s.Name, Protocol: "ipam", Code: cluster.Unassigned, Message: reportedText(s)}
}

// reportedText is the condition that the controller has written to a Service.
func reportedText(s *cluster.Spec) string {
	if s.Reported.Message == "" {
		return "the controller has not looked at it yet"
	}
	return "the controller says: " + s.Reported.Message
}

// claims reports whether a claim confirms the assignment.
func claims(snap *cluster.Snapshot, a cluster.Assignment) bool {
	c := snap.Claim(a.Addr)
	return c != nil && slices.ContainsFunc(c.Holders, func(h cluster.Holder) bool { return h.Name == a.Service })
}
