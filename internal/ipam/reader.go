package ipam

import (
	"fmt"
	"slices"
	"sync"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// NewReader returns a Source for speakers of a cluster with a controller. Its
// Assignments are those of inner that an AddressClaim confirms: any other address
// in a Service's status was written by another implementation, and announcing it
// would take traffic from that one. Its Refusals say what was left out, and which
// Services wait for the controller.
//
// A snapshot in which no status and no claim has changed shares both with the
// one before.
func NewReader(inner cluster.Source) cluster.Source { return &reader{inner: inner} }

// A reader caches the snapshot that it returned last: Snapshot is called for each change of any
// object, and mostly neither a status nor a claim has changed.
type reader struct {
	inner cluster.Source

	mu      sync.Mutex
	in, out *cluster.Snapshot // nil at first
}

// Changed is the inner Source's: the assignments depend on nothing else.
func (r *reader) Changed() <-chan struct{} { return r.inner.Changed() }

// Snapshot returns the same pointer as long as the inner Source does.
func (r *reader) Snapshot() *cluster.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.inner.Snapshot()
	if in == r.in {
		return r.out
	}
	out := *in
	if r.in != nil && sameClaims(r.in, in) {
		out.Assignments, out.Refusals = r.out.Assignments, r.out.Refusals
	} else {
		out.Assignments, out.Refusals = confirmed(in)
		if r.out != nil && slices.Equal(out.Assignments, r.out.Assignments) {
			out.Assignments = r.out.Assignments
		}
	}
	r.in, r.out = in, &out
	return r.out
}

// sameClaims says whether confirmed would find nothing new in b.
func sameClaims(a, b *cluster.Snapshot) bool {
	return slices.Equal(a.Claims, b.Claims) && slices.Equal(a.Assignments, b.Assignments) &&
		slices.EqualFunc(a.Services, b.Services, func(x, y cluster.Service) bool { return x.Spec == y.Spec })
}

// confirmed returns the assignments that claims confirm, and says what is wrong
// with the others and with Services that have none.
func confirmed(snap *cluster.Snapshot) (ours []cluster.Assignment, why []cluster.Reason) {
	has := make(map[cluster.Name]bool, len(snap.Services))
	ours = make([]cluster.Assignment, 0, len(snap.Assignments))
	for _, a := range snap.Assignments {
		has[a.Service] = true
		if claims(snap, a) {
			ours = append(ours, a)
			continue
		}
		why = append(why, cluster.Reason{VIP: a.Addr, Service: a.Service, Protocol: "ipam", Code: cluster.NotOurs, Message: fmt.Sprintf(
			"the status says %s, and no AddressClaim that %s holds it: another implementation gave it, or the controller has yet to claim it", a.Addr, a.Service)})
	}
	for _, s := range snap.Services {
		if !has[s.Name] {
			why = append(why, waiting(s.Spec))
		}
	}
	if len(ours) == len(snap.Assignments) {
		ours = snap.Assignments // as nearly always: no second copy
	}
	slices.SortStableFunc(why, func(a, b cluster.Reason) int { return a.Service.Compare(b.Service) })
	return ours, why
}

// waiting is why a Service has no address, in the controller's words if it has
// said anything.
func waiting(s *cluster.Spec) cluster.Reason {
	message := "the controller has not looked at it yet"
	if s.Reported.Message != "" {
		message = "the controller says: " + s.Reported.Message
	}
	return cluster.Reason{Service: s.Name, Protocol: "ipam", Code: cluster.Unassigned, Message: message}
}

// claims says whether a claim confirms the assignment.
func claims(snap *cluster.Snapshot, a cluster.Assignment) bool {
	c := snap.Claim(a.Addr)
	return c != nil && slices.ContainsFunc(c.Holders, func(h cluster.Holder) bool { return h.Name == a.Service })
}
