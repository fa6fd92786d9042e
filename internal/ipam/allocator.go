package ipam

import (
	"cmp"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
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

	rule Rule
}

// A Rule decides that a Service is settled. It depends only on the snapshot's Pools and
// Namespaces and the Claims of the Service's addresses, and implies [Settled].
type Rule func(*cluster.Snapshot, *cluster.Spec) bool

// NewAllocator checks all Services.
func NewAllocator(snap *cluster.Snapshot, r Rule) *Allocator {
	s := &Allocator{Snap: snap, rule: r}
	for svc := range snap.Services.All() {
		if r(snap, svc.Spec) {
			s.Held = append(s.Held, held(snap, svc.Spec)...)
		} else {
			s.Open = append(s.Open, svc.Spec)
		}
	}
	slices.SortFunc(s.Held, cluster.Assignment.Compare)
	s.findLoose(snap.Claims.Slice())
	return s
}

// Next returns the Allocator of another snapshot, by the same rule.
func (s *Allocator) Next(snap *cluster.Snapshot) *Allocator {
	gone, came := s.Snap.Claims.Changes(snap.Claims)
	claims := slices.Concat(gone, came)
	names := s.touched(snap, slices.Concat(claims, s.conflicting(snap)))
	if len(names) > snap.Services.Len()/8 || !slices.Equal(s.Snap.Pools, snap.Pools) {
		return NewAllocator(snap, s.rule)
	}
	n := &Allocator{Snap: snap, rule: s.rule, Open: s.recheck(snap, names)}
	doubtful := slices.Concat(s.Loose, claims)
	var was, is []cluster.Assignment // of these Services
	for _, name := range names {
		before := s.heldBy(name)
		for _, a := range before {
			doubtful = append(doubtful, s.Snap.Claim(a.Addr))
		}
		was, is = append(was, before...), append(is, n.heldBy(name)...)
	}
	n.Held = replaceHeld(s.Held, was, is)
	n.findLoose(doubtful)
	return n
}

// touched returns the Services that differ between two snapshots, or whose Claims or Namespaces
// differ, sorted.
func (s *Allocator) touched(snap *cluster.Snapshot, claims []*cluster.Claim) []cluster.Name {
	names := changedSpecs(s.Snap.Services, snap.Services)
	for _, ns := range sortedset.Differ(s.Snap.Namespaces, snap.Namespaces,
		func(a, b *cluster.Namespace) int { return cmp.Compare(a.Name, b.Name) }) {
		for svc := range snap.Services.From(cluster.Name{Namespace: ns.Name}) {
			if svc.Name.Namespace != ns.Name {
				break
			}
			names = append(names, svc.Name)
		}
	}
	for _, c := range claims {
		for _, h := range c.Holders {
			names = append(names, h.Name)
		}
		names = append(names, c.ReservedFor...)
	}
	slices.SortFunc(names, cluster.Name.Compare)
	return slices.Compact(names)
}

// changedSpecs returns the Services that only one of two snapshots has, or that differ in more than
// their endpoints.
func changedSpecs(was, now cluster.Services) (names []cluster.Name) {
	for svc, isNew := range was.Differences(now) {
		other := was
		if !isNew {
			other = now
		}
		if o, _ := other.Get(svc.Name); o.Spec != svc.Spec {
			names = append(names, svc.Name)
		}
	}
	return names
}

// conflicting returns the Claims of addresses with changed reports of speakers.
func (s *Allocator) conflicting(snap *cluster.Snapshot) (claims []*cluster.Claim) {
	for _, c := range sortedset.Differ(s.Snap.Conflicts, snap.Conflicts,
		func(a, b cluster.Conflict) int { return a.Addr.Compare(b.Addr) }) {
		if claim := snap.Claim(c.Addr); claim != nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// recheck returns the Services of another snapshot that are not settled: it applies the rule to the
// named ones, and the others are as before.
func (s *Allocator) recheck(snap *cluster.Snapshot, names []cluster.Name) []*cluster.Spec {
	compare := func(s *cluster.Spec, n cluster.Name) int { return s.Name.Compare(n) }
	return sortedset.Patch(s.Open, names, compare, sortedset.Equal, func(i int) (*cluster.Spec, bool) {
		spec := snap.Service(names[i])
		return spec, spec != nil && !s.rule(snap, spec)
	})
}

// settled returns a Service, nil if it is not settled or does not exist.
func (s *Allocator) settled(name cluster.Name) *cluster.Spec {
	_, open := slices.BinarySearchFunc(s.Open, name,
		func(s *cluster.Spec, n cluster.Name) int { return s.Name.Compare(n) })
	if open {
		return nil
	}
	return s.Snap.Service(name)
}

// heldBy returns the addresses of a Service; none unless it is settled.
func (s *Allocator) heldBy(name cluster.Name) []cluster.Assignment {
	spec := s.settled(name)
	if spec == nil {
		return nil
	}
	return held(s.Snap, spec)
}

// replaceHeld returns a sorted list in which was is replaced by is. If both are equal, as when an
// endpoint or a label changes, it returns list itself.
func replaceHeld(list, was, is []cluster.Assignment) []cluster.Assignment {
	slices.SortFunc(is, cluster.Assignment.Compare)
	keys := slices.Concat(was, is)
	slices.SortFunc(keys, cluster.Assignment.Compare)
	keys = slices.CompactFunc(keys, func(a, b cluster.Assignment) bool { return a.Compare(b) == 0 })
	return sortedset.Patch(list, keys, cluster.Assignment.Compare, func(a, b cluster.Assignment) bool { return a == b },
		func(i int) (a cluster.Assignment, there bool) {
			at, there := slices.BinarySearchFunc(is, keys[i], cluster.Assignment.Compare)
			if there {
				a = is[at]
			}
			return a, there
		})
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
	holder := s.settled(c.Holders[0].Name)
	return holder == nil || !slices.Contains(holder.Status, c.Addr)
}

// held returns the addresses of a settled Service.
func held(snap *cluster.Snapshot, s *cluster.Spec) []cluster.Assignment {
	all := make([]cluster.Assignment, len(s.Status))
	for i, a := range s.Status {
		all[i] = cluster.Assignment{Addr: a, Service: s.Name, Pool: cluster.PoolOf(snap.Pools, a)}
	}
	return all
}

func compareClaims(a, b *cluster.Claim) int { return a.Addr.Compare(b.Addr) }
