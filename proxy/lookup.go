package proxy

import (
	"cmp"
	"net/netip"
	"slices"
)

// A port is a protocol and a port of an address.
type port struct {
	proto Protocol
	port  uint16
}

// sides says for which kinds of clients something holds.
type sides uint8

const (
	sideExternal sides = 1 << iota
	sideInternal
)

// base is the set for IPv4 of the pair that id is of.
func base(id setID) setID {
	if id >= setClientIf {
		return id
	}
	return id &^ 1
}

func (t *Target) empty() bool { return len(t.Backends) == 0 }

// vip finds an address; nil: it is no VIP.
func (s *State) vip(addr netip.Addr) *VIP {
	i, found := slices.BinarySearchFunc(s.VIPs, addr, func(v *VIP, a netip.Addr) int { return v.Addr.Compare(a) })
	if !found {
		return nil
	}
	return s.VIPs[i]
}

// frontend finds one; nil: there is none.
func (s *State) frontend(vip netip.Addr, at port) *Frontend {
	v := s.vip(vip)
	if v == nil {
		return nil
	}
	fronts := v.Frontends
	j, found := slices.BinarySearchFunc(fronts, at, func(f Frontend, at port) int {
		return cmp.Or(cmp.Compare(f.Protocol, at.proto), cmp.Compare(f.Port, at.port))
	})
	if !found {
		return nil
	}
	return &fronts[j]
}

// has says whether the frontend's flows may be at a backend: new ones, or flows
// that it keeps.
func (f *Frontend) has(backend netip.AddrPort) bool {
	return f.External.has(backend) || f.Internal.has(backend) || f.drains(backend)
}

func (f *Frontend) drains(backend netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(f.Draining, backend, netip.AddrPort.Compare)
	return found
}

func (t *Target) has(backend netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(t.Backends, backend, func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) })
	return found
}

func containsAddr(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}
