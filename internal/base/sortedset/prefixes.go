package sortedset

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Uncovered returns the addresses that no prefix contains. It allocates only if there are some, which
// is rare.
func Uncovered(addrs Set[netip.Addr], prefixes Set[netip.Prefix]) (bare []netip.Addr) {
	var reach netip.Addr // the last address of all prefixes that begin before
	from := cursor[netip.Prefix]{chunks: prefixes.chunks}
	for a := range addrs.All() {
		for len(from.chunks) > 0 {
			p := from.chunks[0][from.at]
			if a.Less(p.Addr()) {
				break
			}
			last := p.Addr()
			if !p.IsSingleIP() { // most are, and the next call takes longer than all else here
				last = netipx.PrefixLastIP(p)
			}
			if reach.Less(last) {
				reach = last
			}
			from.next()
		}
		if reach.Less(a) {
			bare = append(bare, a)
		}
	}
	return bare
}

// ContainsAddr reports whether one of a few prefixes, in any order, contains an address. An address with a zone is in
// none.
func ContainsAddr(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Holding returns the prefixes that contain an address. Both arguments must be sorted.
func Holding(prefixes []netip.Prefix, addrs []netip.Addr) []netip.Prefix {
	var some []netip.Prefix
	for _, p := range prefixes {
		i, _ := slices.BinarySearchFunc(addrs, p.Addr(), netip.Addr.Compare)
		if i < len(addrs) && p.Contains(addrs[i]) {
			some = append(some, p)
		}
	}
	return some
}

// ComparePrefixes orders masked prefixes, such as routes, by address, then length.
func ComparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// PrefixSet returns the [Set] of prefixes.
func PrefixSet(list ...netip.Prefix) Set[netip.Prefix] { return SetOf(list, ComparePrefixes) }

// UnionPrefixes is Union of prefixes.
func UnionPrefixes(a, b []netip.Prefix) []netip.Prefix { return UnionFunc(a, b, ComparePrefixes) }

// HostPrefix returns the /32 or /128 of an address.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// HostPrefixes returns the HostPrefix of each address.
func HostPrefixes(list []netip.Addr) []netip.Prefix {
	hosts := make([]netip.Prefix, len(list))
	for i, a := range list {
		hosts[i] = HostPrefix(a)
	}
	return hosts
}

// MergePrefixes sorts prefixes and joins overlapping and adjacent ones.
func MergePrefixes(list []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range list {
		b.AddPrefix(p)
	}
	return BuildPrefixes(&b)
}

// AddPrefixes adds prefixes to a list that MergePrefixes returned.
func AddPrefixes(list, more []netip.Prefix) []netip.Prefix {
	if len(more) == 0 {
		return list
	}
	return MergePrefixes(slices.Concat(list, more))
}

// RemoveAddrs removes addresses from a list that MergePrefixes returned.
func RemoveAddrs(list []netip.Prefix, addrs []netip.Addr) []netip.Prefix {
	if len(addrs) == 0 {
		return list
	}
	var b netipx.IPSetBuilder
	for _, p := range list {
		b.AddPrefix(p)
	}
	for _, a := range addrs {
		b.Remove(a)
	}
	return BuildPrefixes(&b)
}

// BuildPrefixes returns the prefixes of a builder. Its only error is an invalid part, and
// parts were checked when they were parsed.
func BuildPrefixes(b *netipx.IPSetBuilder) []netip.Prefix {
	set, err := b.IPSet()
	if err != nil {
		return nil
	}
	return set.Prefixes()
}
