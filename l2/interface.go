package l2

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
)

// A MAC is an Ethernet hardware address.
type MAC = hwaddr.MAC

// An Interface can answer for addresses: Ethernet, up, with a carrier, with ARP, and not a
// port of a bridge or bond, whose master answers instead.
type Interface struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	MAC   MAC    `json:"mac"`
	// Prefixes are the subnets of its addresses, masked, sorted and unique, without single
	// addresses and link-local ones. An address in one of them belongs on this link.
	Prefixes []netip.Prefix `json:"prefixes"`
	// Addrs are its own addresses, sorted: one in each of Prefixes.
	Addrs []netip.Addr `json:"-"`
	// IPv6 says whether the interface has an IPv6 address, at least a link-local one.
	// Without one, the kernel drops all IPv6 there.
	IPv6 bool `json:"ipv6"`
}

// Has reports whether an address is in a subnet of this interface, and not a broadcast address there.
func (i Interface) Has(addr netip.Addr) bool {
	return sortedset.ContainsAddr(i.Prefixes, addr) && !i.Broadcasts(addr)
}

// Broadcasts reports whether an address is the broadcast address of a subnet of this interface, which
// no host can have: the last one of an IPv4 subnet (RFC 919), unless it has one or two addresses
// (RFC 3021).
func (i Interface) Broadcasts(addr netip.Addr) bool {
	return addr.Is4() && slices.ContainsFunc(i.Prefixes, func(p netip.Prefix) bool {
		return p.Addr().Is4() && p.Bits() < 31 && p.Contains(addr) &&
			(!addr.Next().IsValid() || !p.Contains(addr.Next()))
	})
}

// Carries reports whether this interface should answer for a.
func (i Interface) Carries(a Address) bool {
	if a.Addr.Is6() && !i.IPv6 {
		return false
	}
	if len(a.Interfaces) > 0 {
		return slices.Contains(a.Interfaces, i.Name) && !i.Broadcasts(a.Addr)
	}
	return i.Has(a.Addr)
}

func (i Interface) equal(j Interface) bool {
	return i.Name == j.Name && i.Index == j.Index && i.MAC == j.MAC && i.IPv6 == j.IPv6 &&
		slices.Equal(i.Prefixes, j.Prefixes) && slices.Equal(i.Addrs, j.Addrs)
}
