package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// source returns this end of the connection, nil if the kernel chooses.
func source(s Session) (net.Addr, error) {
	addr := s.SourceAddress
	if s.SourceInterface != "" {
		var err error
		if addr, err = sourceOn(s.SourceInterface, s.PeerAddress); err != nil {
			return nil, err
		}
	}
	if !addr.IsValid() {
		return nil, nil // nil of the right type would be an address
	}
	if addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "" {
		addr = addr.WithZone(s.PeerAddress.Zone())
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(numbered(addr), 0)), nil
}

// numbered replaces the interface name of a link-local address by its index. Package net caches
// indexes for a minute, even if another interface gets the name.
func numbered(a netip.Addr) netip.Addr {
	if a.Zone() == "" {
		return a
	}
	link, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return a // the caller's next step reports the error
	}
	return a.WithZone(strconv.Itoa(link.Index))
}

// sourceOn returns the interface's address from which to connect to peer. It is looked up for each
// connection, because addresses change.
func sourceOn(name string, peer netip.Addr) (netip.Addr, error) {
	prefixes, err := addressesOf(name)
	if err != nil {
		return netip.Addr{}, err
	}
	if best := bestSource(prefixes, peer); best.IsValid() {
		return best, nil
	}
	return netip.Addr{}, fmt.Errorf("source interface %s has no address to reach %s from", name, peer)
}

func addressesOf(name string) ([]netip.Prefix, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("source interface %s is not on this node", name)
	}
	addrs, err := link.Addrs()
	if err != nil {
		return nil, fmt.Errorf("source interface %s: %w", name, err)
	}
	prefixes := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, nil
}

// bestSource prefers an address in the peer's own network. A link-local address reaches only
// link-local addresses.
func bestSource(prefixes []netip.Prefix, peer netip.Addr) (best netip.Addr) {
	for _, p := range prefixes {
		a := p.Addr()
		if a.Is4() != peer.Is4() || a.IsLinkLocalUnicast() != peer.IsLinkLocalUnicast() ||
			a.IsLoopback() != peer.IsLoopback() {
			continue
		}
		if p.Contains(peer.WithZone("")) {
			return a
		}
		if !best.IsValid() {
			best = a
		}
	}
	return best
}

// leadsTo reports whether this node reaches peer by the interface with the index link: because of
// peer's zone or the session's device, because the interface has an address in peer's network, or by
// the kernel's routes, in a VRF those of device.
func leadsTo(link int, peer netip.Addr, device string) bool {
	name := interfaceName(link)
	if peer.Zone() != "" {
		return numbered(peer).Zone() == strconv.Itoa(link)
	}
	prefixes, err := addressesOf(name)
	if name == device || err == nil && sortedset.ContainsAddr(prefixes, peer) {
		return true
	}
	routes, err := netlink.RouteGetWithOptions(peer.AsSlice(), &netlink.RouteGetOptions{Oif: device})
	return err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex == link })
}

// interfaceName returns the name of the interface with an index, which may have gone.
func interfaceName(index int) string {
	if link, err := net.InterfaceByIndex(index); err == nil {
		return link.Name
	}
	return fmt.Sprintf("interface %d", index)
}

// addrOf keeps the zone as package net names it, because GoBGP looks up the neighbour by it. The
// configuration may have an index.
func addrOf(a net.Addr) netip.Addr { return a.(*net.TCPAddr).AddrPort().Addr() }
