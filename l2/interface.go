package l2

import (
	"net/netip"
	"slices"
)

// An Interface is one that addresses can be answered for on: Ethernet, up, with a
// carrier, with ARP, and no port of a bridge or bond, whose master answers instead.
type Interface struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	MAC   MAC    `json:"mac"`
	// Prefixes are the subnets that its addresses are in, masked, sorted and unique;
	// those of single addresses and of link-local ones are left out. An address in
	// one of them belongs on this link.
	Prefixes []netip.Prefix `json:"prefixes"`
	// Addrs are addresses of its own, sorted: one in each of Prefixes.
	Addrs []netip.Addr `json:"-"`
	// IPv6 says whether IPv6 works on it: that it has an address, if only a
	// link-local one. Without, the kernel drops all IPv6 there.
	IPv6 bool `json:"ipv6"`
}

// Has says whether the address's subnet is on this interface's link.
func (i Interface) Has(addr netip.Addr) bool {
	return slices.ContainsFunc(i.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Carries says whether a is to be answered for on this interface.
func (i Interface) Carries(a Address) bool {
	if a.Addr.Is6() && !i.IPv6 {
		return false
	}
	if len(a.Interfaces) > 0 {
		return slices.Contains(a.Interfaces, i.Name)
	}
	return i.Has(a.Addr)
}

func (i Interface) equal(j Interface) bool {
	return i.Name == j.Name && i.Index == j.Index && i.MAC == j.MAC && i.IPv6 == j.IPv6 && slices.Equal(i.Prefixes, j.Prefixes) && slices.Equal(i.Addrs, j.Addrs)
}
