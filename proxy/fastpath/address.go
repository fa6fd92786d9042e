package fastpath

import (
	"net/netip"
)

// The directions of flows, which are roles of interfaces too; the values are those of
// flow.bpf.c.
const (
	outward = 1
	inward  = 2
	peer    = 4 // a role in addition to inward
)

// Bits of kernelFlow.State: which packets the flow has had in one direction.
const (
	flowOpen = 1 << iota
	flowFIN
	flowRST
	flowLeft  // the rules have the flow
	flowLeave // the flow must be moved to the rules
)

// countFull is an index of the counters in flow.bpf.c: new flows for which there was no room.
const countFull = 1

// addressOf returns the programs' form of an address: IPv4 is ::ffff:a.b.c.d (RFC 4291
// section 2.5.5.2).
func addressOf(a netip.Addr) kernelAddress { return kernelAddress{Octets: a.As16()} }

// addr is the inverse of addressOf.
func (a kernelAddress) addr() netip.Addr { return netip.AddrFrom16(a.Octets).Unmap() }

// port adds a port. The maps have ports in host byte order.
func (a kernelAddress) port(n uint16) netip.AddrPort { return netip.AddrPortFrom(a.addr(), n) }

// frontendOf returns the key of a frontend in the maps and in a Datapath.
func frontendOf(a netip.AddrPort, protocol uint8) kernelFrontend {
	return kernelFrontend{Address: addressOf(a.Addr()), Port: a.Port(), Protocol: protocol}
}

// addrPort returns the frontend's address and port, for State and messages.
func (f kernelFrontend) addrPort() netip.AddrPort { return f.Address.port(f.Port) }

// prefixOf returns a key of the map clients, an LPM trie over 128 bits: IPv4 prefixes are 96
// bits longer there.
func prefixOf(p netip.Prefix) kernelPrefix {
	return kernelPrefix{Length: uint32(128 - p.Addr().BitLen() + p.Bits()), Address: addressOf(p.Addr())}
}

// reply is the key of the entry for replies to the flow of a forward entry.
func (t kernelTuple) reply(f *kernelFlow) kernelTuple {
	return kernelTuple{
		Source: f.Address, SourcePort: f.Port,
		Destination: t.Source, DestinationPort: f.ClientPort,
		Protocol: t.Protocol, Direction: inward,
	}
}

// forward is the key of the entry for a client's packets, from the entry for replies.
func (t kernelTuple) forward(f *kernelFlow) kernelTuple {
	return kernelTuple{
		Source: t.Destination, SourcePort: f.ClientPort,
		Destination: f.Address, DestinationPort: f.Port,
		Protocol: t.Protocol, Direction: outward,
	}
}

// flow returns the flow of a forward entry.
func (t kernelTuple) flow(f *kernelFlow) Flow {
	return Flow{
		Client:   t.Source.port(t.SourcePort),
		VIP:      t.Destination.port(t.DestinationPort),
		Backend:  f.Address.port(f.Port),
		Protocol: t.Protocol,
	}
}
