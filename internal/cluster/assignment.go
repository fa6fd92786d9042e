package cluster

import (
	"cmp"
	"iter"
	"net/netip"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// An Assignment is an address that a Service holds.
type Assignment struct {
	Addr    netip.Addr
	Service Name
	Pool    string // empty when no pool contains the address
	// From is the pool that the address was assigned from, as far as it is known. It matters only
	// if Pool is empty; see [Snapshot.OriginOf].
	From Origin
}

// Compare orders by address, then Service.
func (a Assignment) Compare(o Assignment) int {
	return cmp.Or(a.Addr.Compare(o.Addr), a.Service.Compare(o.Service))
}

// Assignments are sorted by address, then Service. Versions share what they have in common.
type Assignments struct {
	sortedset.Set[Assignment]
	overL2 int // how many are from a pool that was announced over Layer 2, wherever this is known
}

// AssignmentSet returns the Assignments of a list.
func AssignmentSet(list ...Assignment) Assignments {
	return Assignments{}.next(sortedset.SetOf(list, Assignment.Compare))
}

// next is the version now, of which it counts only what differs from s.
func (s Assignments) next(now sortedset.Set[Assignment]) Assignments {
	if s.Set.Same(now) {
		return s
	}
	n := Assignments{now, s.overL2}
	for a, came := range s.Differences(n) {
		switch {
		case a.From.Announce != AnnounceL2:
		case came:
			n.overL2++
		default:
			n.overL2--
		}
	}
	return n
}

// Patch replaces the elements under sorted keys by the results of now; false: there is none.
func (s Assignments) Patch(keys []Assignment, now func(key Assignment) (Assignment, bool)) Assignments {
	return s.next(sortedset.PatchSet(s.Set, keys, Assignment.Compare, sortedset.Equal,
		func(i int) (Assignment, bool) { return now(keys[i]) }))
}

// With adds elements of a sorted list, or replaces those under the same keys.
func (s Assignments) With(list ...Assignment) Assignments {
	return s.Patch(list, func(a Assignment) (Assignment, bool) { return a, true })
}

// Without removes the elements under the keys of a sorted list.
func (s Assignments) Without(list ...Assignment) Assignments {
	return s.Patch(list, func(a Assignment) (Assignment, bool) { return a, false })
}

// Keep returns s if now has the same elements, so that Same detects no change.
func (s Assignments) Keep(now Assignments) Assignments {
	if sortedset.KeepSet(s.Set, now.Set, Assignment.Compare).Same(s.Set) {
		return s
	}
	return now
}

// Same reports whether both are the same version, without comparing elements.
func (s Assignments) Same(o Assignments) bool { return s.Set.Same(o.Set) }

// Differences returns in order what is in one version and not in the other, and whether it is in now.
func (s Assignments) Differences(now Assignments) iter.Seq2[Assignment, bool] {
	return sortedset.Differences(s.Set, now.Set, Assignment.Compare)
}

// Get returns the assignment of an address to a Service, and false if there is none.
func (s Assignments) Get(key Assignment) (a Assignment, found bool) {
	return sortedset.Get(s.Set, key, Assignment.Compare)
}
