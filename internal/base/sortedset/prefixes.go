package sortedset

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Covered returns the addresses that a prefix contains, addrs itself if all are. Both
// arguments must be sorted. It allocates only if some are not, which is rare.
func Covered(addrs []netip.Addr, prefixes []netip.Prefix) []netip.Addr {
	var in []netip.Addr  // the beginning of addrs itself, until one is not covered
	var reach netip.Addr // the last address of all prefixes that begin before
	for i, a := range addrs {
		for len(prefixes) > 0 && prefixes[0].Addr().Compare(a) <= 0 {
			last := prefixes[0].Addr()
			if !prefixes[0].IsSingleIP() { // most are, and the next call takes longer than all else here
				last = netipx.PrefixLastIP(prefixes[0])
			}
			if reach.Less(last) {
				reach = last
			}
			prefixes = prefixes[1:]
		}
		switch {
		case a.Compare(reach) > 0:
		case len(in) == i:
			in = addrs[: i+1 : i+1]
		default:
			in = append(in, a)
		}
	}
	return in
}

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

// A Coverage is addresses that are all in prefixes.
type Coverage struct {
	Addrs    Set[netip.Addr]
	Prefixes Set[netip.Prefix]
}

// Uncovered is [Uncovered] of sets that differ little from the Coverage: it looks only at what differs.
func (c Coverage) Uncovered(addrs Set[netip.Addr], prefixes Set[netip.Prefix]) (bare []netip.Addr) {
	doubtful := Only(addrs, c.Addrs, netip.Addr.Compare)
	for _, p := range Only(c.Prefixes, prefixes, ComparePrefixes) {
		doubtful = append(doubtful, within(addrs, p)...)
	}
	if len(doubtful) > addrs.Len()/manyDoubtful {
		return Uncovered(addrs, prefixes)
	}
	for a := range AddrSet(doubtful...).All() {
		if !contains(prefixes, a) {
			bare = append(bare, a)
		}
	}
	return bare
}

// manyDoubtful is which part of all addresses takes as long to search for as it takes to compare all.
const manyDoubtful = 100

// within returns the addresses in a prefix.
func within(addrs Set[netip.Addr], p netip.Prefix) (some []netip.Addr) {
	at := chunkOf(addrs.chunks, p.Addr(), netip.Addr.Compare)
	for _, chunk := range addrs.chunks[min(at, len(addrs.chunks)):] {
		i, _ := slices.BinarySearchFunc(chunk, p.Addr(), netip.Addr.Compare)
		for _, a := range chunk[i:] {
			if !p.Contains(a) {
				return some
			}
			some = append(some, a)
		}
	}
	return some
}

// contains reports whether one of the prefixes contains an address: a /32, most likely, and otherwise
// one of another length.
func contains(prefixes Set[netip.Prefix], a netip.Addr) bool {
	for bits := a.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(a, bits).Masked()
		if _, found := Get(prefixes, p, ComparePrefixes); found {
			return true
		}
	}
	return false
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
