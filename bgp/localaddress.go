package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// source is our end of the connection, nil when the kernel chooses.
func source(s Session) (net.Addr, error) {
	addr := s.SourceAddress
	if s.SourceInterface != "" {
		var err error
		if addr, err = sourceOn(s.SourceInterface, s.PeerAddress); err != nil {
			return nil, err
		}
	}
	if !addr.IsValid() {
		return nil, nil // a typed nil would be an address
	}
	if addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "" {
		addr = addr.WithZone(s.PeerAddress.Zone())
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(numbered(addr), 0)), nil
}

// numbered names the interface of a link-local address by its number. Package net
// remembers for a minute which number a name had, also when another interface has got
// the name.
func numbered(a netip.Addr) netip.Addr {
	if a.Zone() == "" {
		return a
	}
	link, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return a // the caller that uses it reports the error
	}
	return a.WithZone(strconv.Itoa(link.Index))
}

// sourceOn is the address of an interface to connect to peer from. It is looked up
// for each connection: addresses change.
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

// bestSource prefers an address in the peer's own network. A link-local address
// only reaches link-local addresses.
func bestSource(prefixes []netip.Prefix, peer netip.Addr) (best netip.Addr) {
	for _, p := range prefixes {
		a := p.Addr()
		if a.Is4() != peer.Is4() || a.IsLinkLocalUnicast() != peer.IsLinkLocalUnicast() || a.IsLoopback() != peer.IsLoopback() {
			continue
		}
		if p.Masked().Contains(peer.WithZone("")) {
			return a
		}
		if !best.IsValid() {
			best = a
		}
	}
	return best
}
