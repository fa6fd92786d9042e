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
func IntersectFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if Same(a, b) {
		return a
	}
	both := make([]T, 0, min(len(a), len(b)))
	merged(a, b, compare, func(t T, inA, inB bool) {
		if inA && inB {
			both = append(both, t)
		}
	})
	return both
}

// MinusFunc is Minus for any elements, in the order of compare.
func MinusFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if Same(a, b) {
		return nil
	}
	var only []T
	kept, at, removed := 0, 0, false // only has what stays of a[:kept]
	for _, x := range b {
		rest, found := Seek(a[at:], x, compare)
		if at = len(a) - len(rest); !found {
			continue
		}
		if !removed {
			only, removed = make([]T, 0, max(0, len(a)-len(b))), true
		}
		only = append(only, a[kept:at]...)
		at++
		kept = at
	}
	if !removed {
		return a
	}
	if only = append(only, a[kept:]...); len(only) == 0 {
		return nil
	}
	return only
}

// UnionFunc is Union for any elements, in the order of compare.
func UnionFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if len(a) == 0 {
		return b
	}
	more := MinusFunc(b, a, compare)
	if len(more) == 0 {
		return a
	}
	either := make([]T, 0, len(a)+len(more))
	merged(a, more, compare, func(t T, _, _ bool) { either = append(either, t) })
	return either
}

// merged walks two sorted sets at once.
func merged[T any](a, b []T, compare func(a, b T) int, visit func(t T, inA, inB bool)) {
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = compare(a[0], b[0])
		}
		switch {
		case order < 0:
			visit(a[0], true, false)
			a = a[1:]
		case order > 0:
			visit(b[0], false, true)
			b = b[1:]
		default:
			visit(a[0], true, true)
			a, b = a[1:], b[1:]
		}
	}
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
