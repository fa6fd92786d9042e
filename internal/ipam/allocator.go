package ipam

import (
	"cmp"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// An Allocator divides the Services of a snapshot into settled and open ones. Nearly all of
// thousands of Services are settled at any time, and checking each of them after every change
// mostly waits for memory: Next checks only what has changed.
type Allocator struct {
	Snap *cluster.Snapshot
	// Held are the addresses of settled Services, sorted.
	Held []cluster.Assignment
	// Open are the other Services, sorted by name.
	Open []*cluster.Spec
	// Loose are the Claims that differ from those of settled Services, sorted by address.
	Loose []*cluster.Claim

	rule    Rule
	settled []bool // by the index into Snap.Services
}

// A Rule decides that a Service is settled. It depends only on the snapshot's Pools and
// Namespaces and the Claims of the Service's addresses, and implies [Settled].
type Rule func(*cluster.Snapshot, *cluster.Spec) bool

// NewAllocator checks all Services.
func NewAllocator(snap *cluster.Snapshot, r Rule) *Allocator {
	s := &Allocator{Snap: snap, rule: r, settled: make([]bool, len(snap.Services))}
	for i, svc := range snap.Services {
		if s.settled[i] = r(snap, svc.Spec); s.settled[i] {
			s.Held = append(s.Held, held(snap, svc.Spec)...)
		}
	}
	slices.SortFunc(s.Held, cluster.Assignment.Compare)
	s.open()
	s.findLoose(snap.Claims)
	return s
}

// Next returns the Allocator of another snapshot, by the same rule.
func (s *Allocator) Next(snap *cluster.Snapshot) *Allocator {
	claims := sortedset.Differ(s.Snap.Claims, snap.Claims, compareClaims)
	names := s.touched(snap, slices.Concat(claims, s.conflicting(snap)))
	if len(names) > len(snap.Services)/8 || !slices.Equal(s.Snap.Pools, snap.Pools) {
		return NewAllocator(snap, s.rule)
	}
	n := &Allocator{Snap: snap, rule: s.rule, settled: s.carry(snap)}
	doubtful := slices.Concat(s.Loose, claims)
	var was, is []cluster.Assignment // of these Services
	for name := range names {
		before := s.heldBy(name)
		for _, a := range before {
			doubtful = append(doubtful, s.Snap.Claim(a.Addr))
		}
		n.recheck(name)
		was, is = append(was, before...), append(is, n.heldBy(name)...)
	}
	n.Held = replaceHeld(s.Held, was, is)
	n.open()
	n.findLoose(doubtful)
	return n
}

// touched returns the Services that differ between two snapshots, or whose Claims or Namespaces
// differ.
func (s *Allocator) touched(snap *cluster.Snapshot, claims []*cluster.Claim) map[cluster.Name]struct{} {
	names := map[cluster.Name]struct{}{}
	sameSpec := func(a, b cluster.Service) bool { return a.Spec == b.Spec }
	for _, svc := range differ(s.Snap.Services, snap.Services, sameSpec, compareServices) {
		names[svc.Name] = struct{}{}
	}
	for _, ns := range sortedset.Differ(s.Snap.Namespaces, snap.Namespaces, func(a, b *cluster.Namespace) int { return cmp.Compare(a.Name, b.Name) }) {
		i, _ := find(snap.Services, cluster.Name{Namespace: ns.Name})
		for ; i < len(snap.Services) && snap.Services[i].Name.Namespace == ns.Name; i++ {
			names[snap.Services[i].Name] = struct{}{}
		}
	}
	for _, c := range claims {
		for _, h := range c.Holders {
			names[h.Name] = struct{}{}
		}
		for _, name := range c.ReservedFor {
			names[name] = struct{}{}
		}
	}
	return names
}

// conflicting returns the Claims of addresses with changed reports of speakers.
func (s *Allocator) conflicting(snap *cluster.Snapshot) (claims []*cluster.Claim) {
	for _, c := range sortedset.Differ(s.Snap.Conflicts, snap.Conflicts, func(a, b cluster.Conflict) int { return a.Addr.Compare(b.Addr) }) {
		if claim := snap.Claim(c.Addr); claim != nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// carry copies the results of unchanged Services.
func (s *Allocator) carry(snap *cluster.Snapshot) []bool {
	settled := make([]bool, len(snap.Services))
	j := 0
	for i, svc := range snap.Services {
		for j < len(s.settled) && s.Snap.Services[j].Spec != svc.Spec && s.Snap.Services[j].Name.Compare(svc.Name) <= 0 {
			j++
		}
		if j < len(s.settled) && s.Snap.Services[j].Spec == svc.Spec {
			settled[i] = s.settled[j]
			j++
		}
	}
	return settled
}

// heldBy returns the addresses of a Service; none unless it is settled.
func (s *Allocator) heldBy(name cluster.Name) []cluster.Assignment {
	i, found := find(s.Snap.Services, name)
	if !found || !s.settled[i] {
		return nil
	}
	return held(s.Snap, s.Snap.Services[i].Spec)
}

// replaceHeld returns a sorted list in which was is replaced by is. If both are equal, as when an
// endpoint or a label changes, it returns list itself.
func replaceHeld(list, was, is []cluster.Assignment) []cluster.Assignment {
	slices.SortFunc(is, cluster.Assignment.Compare)
	keys := slices.Concat(was, is)
	slices.SortFunc(keys, cluster.Assignment.Compare)
	keys = slices.CompactFunc(keys, func(a, b cluster.Assignment) bool { return a.Compare(b) == 0 })
	return sortedset.Patch(list, keys, cluster.Assignment.Compare, func(a, b cluster.Assignment) bool { return a == b }, func(i int) (a cluster.Assignment, there bool) {
		at, there := slices.BinarySearchFunc(is, keys[i], cluster.Assignment.Compare)
		if there {
			a = is[at]
		}
		return a, there
	})
}

// recheck applies the rule to a Service, if it exists.
func (s *Allocator) recheck(name cluster.Name) {
	if i, found := find(s.Snap.Services, name); found {
		s.settled[i] = s.rule(s.Snap, s.Snap.Services[i].Spec)
	}
}

// open collects the Services that are not settled.
func (s *Allocator) open() {
	for i, is := range s.settled {
		if !is {
			s.Open = append(s.Open, s.Snap.Services[i].Spec)
		}
	}
}

// findLoose collects the loose Claims among doubtful, some of which may be outdated or deleted.
func (s *Allocator) findLoose(doubtful []*cluster.Claim) {
	for _, c := range doubtful {
		if is := s.Snap.Claim(c.Addr); is != nil && s.loose(is) {
			s.Loose = append(s.Loose, is)
		}
	}
	slices.SortFunc(s.Loose, compareClaims)
	s.Loose = slices.Compact(s.Loose)
}

// loose reports whether c differs from the Claim of one settled Service with the address in its
// status.
func (s *Allocator) loose(c *cluster.Claim) bool {
	if len(c.Holders) != 1 || len(c.ReservedFor) != 0 {
		return true
	}
	i, found := find(s.Snap.Services, c.Holders[0].Name)
	return !found || !s.settled[i] || !slices.Contains(s.Snap.Services[i].Status, c.Addr)
}

// held returns the addresses of a settled Service.
func held(snap *cluster.Snapshot, s *cluster.Spec) []cluster.Assignment {
	all := make([]cluster.Assignment, len(s.Status))
	for i, a := range s.Status {
		all[i] = cluster.Assignment{Addr: a, Service: s.Name, Pool: cluster.PoolOf(snap.Pools, a)}
	}
	return all
}

// differ returns the elements that are in only one of two sorted lists. It does not look inside of
// equal elements.
func differ[T any](a, b []T, same func(x, y T) bool, compare func(x, y T) int) (only []T) {
	for len(a) > 0 && len(b) > 0 {
		if same(a[0], b[0]) {
			a, b = a[1:], b[1:]
			continue
		}
		order := compare(a[0], b[0])
		if order <= 0 {
			only, a = append(only, a[0]), a[1:]
		}
		if order >= 0 {
			only, b = append(only, b[0]), b[1:]
		}
	}
	return slices.Concat(only, a, b)
}

// find returns the index of a Service in a sorted list, or where it would be.
func find(services []cluster.Service, name cluster.Name) (int, bool) {
	return slices.BinarySearchFunc(services, name, func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
}

func compareServices(a, b cluster.Service) int { return a.Name.Compare(b.Name) }
func compareClaims(a, b *cluster.Claim) int    { return a.Addr.Compare(b.Addr) }
