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
		return slices.Clip(a[kept:])
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
