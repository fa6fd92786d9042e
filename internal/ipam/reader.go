package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// NewReader returns a Source for speakers of a cluster with a controller. Its Assignments are those
// of inner that an AddressClaim confirms: any other address in a Service's status was written by
// another implementation, and announcing it would divert that one's traffic. Its Refusals say what
// was left out, and which Services wait for the controller. Its Unclaimed are the addresses without
// a claim.
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
	changed := changedAssignments(r.in, in)
	out.Assignments, out.Refusals = confirmed(r.in, last, in, changed)
	out.Unclaimed = patchUnclaimed(in, last.Unclaimed, changed)
	r.in, r.out = in, &out
	return r.out
}

// changedAssignments returns the assignments that differ between two snapshots, or whose claims
// differ, sorted.
func changedAssignments(was, in *cluster.Snapshot) []cluster.Assignment {
	var changed []cluster.Assignment
	for a := range was.Assignments.Differences(in.Assignments) {
		changed = append(changed, a)
	}
	for c := range was.Claims.Differences(in.Claims) {
		changed = append(changed, in.AssignmentsOf(c.Addr)...)
	}
	slices.SortFunc(changed, cluster.Assignment.Compare)
	return slices.CompactFunc(changed, func(a, b cluster.Assignment) bool { return a.Compare(b) == 0 })
}

// confirmed returns the assignments of in that claims confirm, and why others are not confirmed or
// Services have none. It checks only differences from the snapshot was, whose results are in last.
func confirmed(was, last, in *cluster.Snapshot, changed []cluster.Assignment) (ours cluster.Assignments, why []cluster.Reason) {
	unclaimed := func(a cluster.Assignment) bool {
		_, there := in.Assignments.Get(a)
		return there && !claims(in, a)
	}
	if len(changed) > 0 && last.Assignments.Len() == was.Assignments.Len() && !slices.ContainsFunc(changed, unclaimed) {
		ours = in.Assignments // all are confirmed, as nearly always, so no copy is needed
	} else {
		ours = patchConfirmed(in, last.Assignments, changed)
	}
	names := map[cluster.Name]bool{}
	for _, name := range changedSpecs(was.Services, in.Services) {
		names[name] = true
	}
	for _, a := range changed {
		names[a.Service] = true
	}
	return ours, refusals(in, last.Refusals, names)
}

// patchConfirmed returns the confirmed assignments. Only those in changed may differ from before.
func patchConfirmed(in *cluster.Snapshot, confirmed cluster.Assignments, changed []cluster.Assignment) cluster.Assignments {
	return confirmed.Patch(changed, func(key cluster.Assignment) (cluster.Assignment, bool) {
		a, found := in.Assignments.Get(key)
		return a, found && claims(in, a)
	})
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

// refusals returns all Reasons, recomputed for the named Services; last itself if none of them has
// one.
func refusals(in *cluster.Snapshot, last []cluster.Reason, names map[cluster.Name]bool) []cluster.Reason {
	named := func(r cluster.Reason) bool { return names[r.Service] }
	var why []cluster.Reason
	for name := range names {
		if s := in.Service(name); s != nil {
			why = append(why, refusalsOf(in, s)...)
		}
	}
	if len(why) == 0 && !slices.ContainsFunc(last, named) {
		return last
	}
	why = append(slices.DeleteFunc(slices.Clone(last), named), why...)
	slices.SortFunc(why, func(a, b cluster.Reason) int { return cmp.Or(a.Service.Compare(b.Service), a.VIP.Compare(b.VIP)) })
	return why
}

// refusalsOf returns which addresses in the status of a Service no claim confirms, or what a
// Service without addresses waits for.
func refusalsOf(in *cluster.Snapshot, s *cluster.Spec) (why []cluster.Reason) {
	for _, a := range s.Status {
		if !claims(in, cluster.Assignment{Addr: a, Service: s.Name}) {
			why = append(why, cluster.Reason{VIP: a, Service: s.Name, Protocol: "ipam", Code: cluster.NotOurs, Message: fmt.Sprintf(
				"the status says %s, and no AddressClaim that %s holds it: another implementation gave it, or the controller has yet to claim it", a, s.Name)})
		}
	}
	if len(s.Status) == 0 {
		why = append(why, waiting(s))
	}
	return why
}

// waiting returns why a Service has no address, in the controller's words if there are any.
func waiting(s *cluster.Spec) cluster.Reason {
	message := "the controller has not looked at it yet"
	if s.Reported.Message != "" {
		message = "the controller says: " + s.Reported.Message
	}
	return cluster.Reason{Service: s.Name, Protocol: "ipam", Code: cluster.Unassigned, Message: message}
}

// claims reports whether a claim confirms the assignment.
func claims(snap *cluster.Snapshot, a cluster.Assignment) bool {
	c := snap.Claim(a.Addr)
	return c != nil && slices.ContainsFunc(c.Holders, func(h cluster.Holder) bool { return h.Name == a.Service })
}
