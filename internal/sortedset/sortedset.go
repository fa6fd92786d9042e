package sortedset

import (
	"net/netip"
	"slices"
)

// Intersect returns what is in both of two sorted sets of addresses.
func Intersect(a, b []netip.Addr) []netip.Addr { return IntersectFunc(a, b, netip.Addr.Compare) }

// Has reports whether an address is in the set.
func Has(set []netip.Addr, a netip.Addr) bool {
	_, has := slices.BinarySearchFunc(set, a, netip.Addr.Compare)
	return has
}

// Minus returns what is in a and not in b, both sorted sets of addresses; a itself if they have no
// element in common.
func Minus(a, b []netip.Addr) []netip.Addr { return MinusFunc(a, b, netip.Addr.Compare) }

// Union returns what is in either of two sorted sets of addresses; a itself if it has all of b, and
// b itself if a is empty.
func Union(a, b []netip.Addr) []netip.Addr { return UnionFunc(a, b, netip.Addr.Compare) }

// IntersectFunc is Intersect for any elements, in the order of compare.
func IntersectFunc[T comparable](a, b []T, compare func(a, b T) int) []T {
	if Same(a, b) {
		return a
	}
	both := make([]T, 0, min(len(a), len(b)))
	for _, x := range b {
		var found bool
		if a, found = seek(a, x, compare); found {
			both = append(both, x)
		}
	}
	return both
}

// MinusFunc is Minus for any elements, in the order of compare. If only the first elements go, it
// returns the rest of a, without a copy.
func MinusFunc[T comparable](a, b []T, compare func(a, b T) int) []T {
	if Same(a, b) {
		return nil
	}
	var only []T
	kept, at := 0, 0 // only has what stays of a[:kept], if anything does
	for _, x := range b {
		if at == len(a) {
			break
		}
		rest, found := seek(a[at:], x, compare)
		if at = len(a) - len(rest); !found {
			continue
		}
		if at > kept {
			if only == nil {
				only = make([]T, 0, max(at-kept, len(a)-len(b)))
			}
			only = append(only, a[kept:at]...)
		}
		at++
		kept = at
	}
	switch {
	case kept == len(a) && len(only) == 0:
		return nil
	case only == nil:
		return a[kept:]
	}
	return append(only, a[kept:]...)
}

// UnionFunc is Union for any elements, in the order of compare.
func UnionFunc[T comparable](a, b []T, compare func(a, b T) int) []T {
	if len(a) == 0 {
		return b
	}
	more := MinusFunc(b, a, compare)
	if len(more) == 0 {
		return a
	}
	either := make([]T, 0, len(a)+len(more))
	for _, x := range more {
		rest, _ := seek(a, x, compare)
		before := len(a) - len(rest)
		either = append(append(either, a[:before]...), x)
		a = rest
	}
	return append(either, a...)
}

// seek is Seek for an element. It is faster where lists have the same elements, as most have.
func seek[T comparable](list []T, x T, compare func(a, b T) int) (rest []T, found bool) {
	if len(list) > 0 && list[0] == x {
		return list, true
	}
	if len(list) > 1 && list[1] == x {
		return list[1:], true
	}
	return Seek(list, x, compare)
}

// Keep returns was if now is equal to it, else now, so that Same detects no change.
func Keep[T comparable](was, now []T) []T {
	if was != nil && slices.Equal(was, now) {
		return was
	}
	return now
}

// Same reports whether a and b are the same slice, without comparing elements. It is false
// for equal slices in different arrays.
func Same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// A Draft is a list that usually begins like its Last version, or equals it: only from the first
// difference on it has a copy.
type Draft[T any] struct {
	Last []T
	Cap  int // how long the list may get, for its allocation

	same int // this many elements are those of Last
	list []T
}

// Add appends an element. equal compares it with that of Last.
func (d *Draft[T]) Add(t T, equal func(a, b T) bool) {
	switch {
	case d.list != nil:
		d.list = append(d.list, t)
	case d.same < len(d.Last) && equal(d.Last[d.same], t):
		d.same++
	default:
		d.list = append(append(make([]T, 0, d.Cap), d.Last[:d.same]...), t)
	}
}

// List returns the list. It is a part of Last if Last begins with it.
func (d *Draft[T]) List() []T {
	if d.list == nil {
		return d.Last[:d.same]
	}
	return d.list
}

// Equal compares by ==.
func Equal[T comparable](a, b T) bool { return a == b }

// A Memo remembers the result of an operation on two lists. Of returns the same slice again as long
// as the lists are the same, so that what depends on the result finds that nothing has changed.
type Memo[T any] struct {
	a, b, result []T
	known        bool
}

// Of returns f of two lists. The caller uses a Memo for one f.
func (m *Memo[T]) Of(a, b []T, f func(a, b []T) []T) []T {
	if !m.known || !Same(a, m.a) || !Same(b, m.b) {
		m.a, m.b, m.result, m.known = a, b, f(a, b), true
	}
	return m.result
}
