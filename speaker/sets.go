package speaker

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// covered returns those of addrs that are in one of prefixes; both are sorted. It
// returns addrs itself if all are.
func covered(addrs []netip.Addr, prefixes []netip.Prefix) []netip.Addr {
	var in []netip.Addr
	var reach netip.Addr // the last address of all prefixes that begin before
	for _, a := range addrs {
		for len(prefixes) > 0 && prefixes[0].Addr().Compare(a) <= 0 {
			if last := netipx.PrefixLastIP(prefixes[0]); reach.Less(last) {
				reach = last
			}
			prefixes = prefixes[1:]
		}
		if a.Compare(reach) <= 0 {
			in = append(in, a)
		}
	}
	if len(in) == len(addrs) {
		return addrs
	}
	return in
}

// holding returns those of prefixes that have one of addrs in them; both are sorted.
func holding(prefixes []netip.Prefix, addrs []netip.Addr) []netip.Prefix {
	var some []netip.Prefix
	for _, p := range prefixes {
		i, _ := slices.BinarySearchFunc(addrs, p.Addr(), netip.Addr.Compare)
		if i < len(addrs) && p.Contains(addrs[i]) {
			some = append(some, p)
		}
	}
	return some
}

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
