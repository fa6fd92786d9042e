package state

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A Port is a protocol and port number of an address.
type Port struct {
	Proto Protocol
	Port  uint16
}

// Sides are kinds of clients.
type Sides uint8

const (
	SideExternal Sides = 1 << iota
	SideInternal
)

// Base returns the IPv4 set of the pair that id belongs to.
func Base(id SetID) SetID {
	if id >= SetClientIf {
		return id
	}
	return id &^ 1
}

func (t *Target) Empty() bool { return len(t.Backends) == 0 }

// VIP returns the VIP with an address; nil if it is not a VIP.
func (s *State) VIP(addr netip.Addr) *VIP {
	v, _ := sortedset.Get(s.VIPs, addr, (*VIP).CompareAddr)
	return v
}

// Frontend returns a frontend; nil if it does not exist.
func (s *State) Frontend(vip netip.Addr, at Port) *Frontend {
	return s.VIP(vip).frontend(at)
}

// frontend returns a frontend of a VIP; nil if it does not exist.
func (v *VIP) frontend(at Port) *Frontend {
	if v == nil {
		return nil
	}
	fronts := v.Frontends
	j, found := slices.BinarySearchFunc(fronts, at, func(f Frontend, at Port) int {
		return cmp.Or(cmp.Compare(f.Protocol, at.Proto), cmp.Compare(f.Port, at.Port))
	})
	if !found {
		return nil
	}
	return &fronts[j]
}

// Has reports whether the frontend's flows may be at a backend: new flows, or flows that it keeps.
func (f *Frontend) Has(backend netip.AddrPort) bool {
	return f.External.Has(backend) || f.Internal.Has(backend) || f.Drains(backend)
}

func (f *Frontend) Drains(backend netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(f.Draining, backend, netip.AddrPort.Compare)
	return found
}

func (t *Target) Has(backend netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(t.Backends, backend, func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) })
	return found
}
