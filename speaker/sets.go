package speaker

import (
	"net/netip"
	"slices"
)

// intersect returns what is in both of two sorted sets of addresses.
func intersect(a, b []netip.Addr) []netip.Addr { return intersectFunc(a, b, netip.Addr.Compare) }

// minus returns what is in a and not in b, both sorted sets of addresses.
func minus(a, b []netip.Addr) []netip.Addr { return minusFunc(a, b, netip.Addr.Compare) }

func intersectFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if same(a, b) {
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

func minusFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if same(a, b) {
		return nil
	}
	var only []T
	merged(a, b, compare, func(t T, inA, inB bool) {
		if inA && !inB {
			only = append(only, t)
		}
	})
	return only
}

// union returns what is in either of two sorted sets; a itself if b is empty.
func union[T any](a, b []T, compare func(a, b T) int) []T {
	if len(b) == 0 {
		return a
	}
	either := make([]T, 0, len(a)+len(b))
	merged(a, b, compare, func(t T, _, _ bool) { either = append(either, t) })
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

// keep is now, or was if that is equal.
func keep[T comparable](was, now []T) []T {
	if was != nil && slices.Equal(was, now) {
		return was
	}
	return now
}

// same says whether two slices are one, without looking at what is in them.
func same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
