package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// NewSource returns a Source with the snapshots of inner, and with Assignments and Refusals
// by [Allocator.Allocate]. It is for sources without a controller, such as a folder of files.
//
// It remembers its assignments: no addition to inner moves a Service's address while the
// Source lives. held are the assignments of an earlier Source; the caller keeps them over
// restarts.
//
// If neither a Service's Spec nor a Pool has changed, a snapshot costs a walk over
// pointers, and shares Assignments and Refusals with the previous one.
func NewSource(inner cluster.Source, held []cluster.Assignment) cluster.Source {
	return &source{inner: inner, out: &cluster.Snapshot{Assignments: cluster.AssignmentSet(held...)}}
}

// A source allocates each time that the inner Source has another snapshot.
type source struct {
	inner cluster.Source

	mu sync.Mutex
	in *cluster.Snapshot // that out was made from; nil at first
	// out is the last result. Its Assignments are remembered.
	out *cluster.Snapshot
}

// Changed is the inner Source's: the assignments depend on nothing else.
func (s *source) Changed() <-chan struct{} { return s.inner.Changed() }

// Snapshot returns the same pointer as long as the inner Source does.
func (s *source) Snapshot() *cluster.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.inner.Snapshot()
	if in == s.in {
		return s.out
	}
	out := *in
	if s.in != nil && sameInput(s.in, in) {
		out.Assignments, out.Refusals = s.out.Assignments, s.out.Refusals
	} else {
		assignments, refusals := allocate(in, s.remembered())
		out.Assignments, out.Refusals = s.out.Assignments.Keep(cluster.AssignmentSet(assignments...)), refusals
		if slices.Equal(out.Refusals, s.out.Refusals) {
			out.Refusals = s.out.Refusals
		}
	}
	s.in, s.out = in, &out
	return s.out
}

// remembered returns the last assignments, each with its pool, because the next snapshot may lack
// that pool.
func (s *source) remembered() []cluster.Assignment {
	list := s.out.Assignments.Slice()
	for i, a := range list {
		list[i].From = s.out.OriginOf(a)
	}
	return list
}

// sameInput reports whether Allocate would return the same for b.
func sameInput(a, b *cluster.Snapshot) bool {
	return slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Namespaces, b.Namespaces) &&
		len(changedSpecs(a.Services, b.Services)) == 0
}

// allocate is Allocate with remembered assignments, on one of several nodes that decide
// independently.
func allocate(snap *cluster.Snapshot, remembered []cluster.Assignment) ([]cluster.Assignment, []cluster.Reason) {
	p := newPlan(NewAllocator(snap, neverSettled))
	for _, a := range remembered {
		p.claim(a, slices.Contains(p.status(a.Service), a.Addr), true)
	}
	for a := range snap.Assignments.All() {
		p.claim(a, true, a.Pool != "")
	}
	p.run()
	for _, h := range p.services {
		p.warnUnstable(h)
	}
	return p.assignments(), p.sortedReasons()
}

// neverSettled is a Rule: without Claims, no Service is settled.
func neverSettled(*cluster.Snapshot, *cluster.Spec) bool { return false }

// warnUnstable warns if a node that starts now, without memory, could give h another
// address: if h's address is not at its own position in the pool, and no object that all
// nodes read fixes it.
func (p *plan) warnUnstable(h *service) {
	for _, a := range h.addrs {
		if slices.Contains(h.Status, a) || asked(p.Snap.Pools, h.Spec, a) || p.poolOf(a) == nil {
			continue
		}
		if home := p.home(h, cluster.FamilyOf(a)); home != a {
			p.addReason(h, a, cluster.PositionConflict,
				"has %s, but %s: to be sure, write the addresses that are meant into the files, under "+
					"status.loadBalancer.ingress",
				a, p.alternative(home))
		}
	}
}

// home is the address that h gets if it is free, invalid if h would get none.
func (p *plan) home(h *service, family corev1.IPFamily) netip.Addr {
	s := search{p.holdings, h, family}
	pools, _ := s.candidates()
	pools, _ = s.admit(pools)
	if len(pools) == 0 || slices.Contains(h.excluded, family) {
		return netip.Addr{}
	}
	return pools[0].space(family).home(h.positionName())
}

// alternative says what another node may give a Service with this home.
func (p *plan) alternative(home netip.Addr) string {
	if !home.IsValid() {
		return "a node that starts now would give it none"
	}
	if others := p.taken[home]; others != nil {
		return fmt.Sprintf("its own position in the pool is %s, which %s has, and a node that starts in another "+
			"order may have it the other way round", home, others[0].Name)
	}
	return fmt.Sprintf("a node that starts now would give it %s", home)
}
