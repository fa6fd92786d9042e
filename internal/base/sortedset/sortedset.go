package sortedset

import (
	"net/netip"
	"slices"
)

// Has reports whether an address is in the set.
func Has(set []netip.Addr, a netip.Addr) bool {
	_, has := slices.BinarySearchFunc(set, a, netip.Addr.Compare)
	return has
}

// AddrSet returns the [Set] of addresses.
func AddrSet(list ...netip.Addr) Set[netip.Addr] { return SetOf(list, netip.Addr.Compare) }

// HasAddr is Has for a [Set].
func HasAddr(set Set[netip.Addr], a netip.Addr) bool {
	_, has := Get(set, a, netip.Addr.Compare)
	return has
}

// Minus returns what is in a and not in b, both sorted sets of addresses; a itself if they have no
// element in common.
func Minus(a, b []netip.Addr) []netip.Addr { return MinusFunc(a, b, netip.Addr.Compare) }

// Union returns what is in either of two sorted sets of addresses; a itself if it has all of b, and
// b itself if a is empty.
func Union(a, b []netip.Addr) []netip.Addr { return UnionFunc(a, b, netip.Addr.Compare) }

// MinusFunc is Minus for any elements, in the order of compare. If only the first elements go, it
// returns the rest of a, without a copy.
func MinusFunc[T comparable](a, b []T, compare func(a, b T) int) []T {
	if Same(a, b) {
		return nil
	}
	return Patch(a, b, compare, Equal, func(int) (t T, is bool) { return t, false })
}

// UnionFunc is Union for any elements, in the order of compare. Of two with the same key it has that of a.
func UnionFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if len(a) == 0 {
		return b
	}
	keep := func(T, T) bool { return true }
	return Patch(a, b, compare, keep, func(i int) (T, bool) { return b[i], true })
}
