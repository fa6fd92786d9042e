package l2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A State lists everything that this node should answer for. It is a plain value: build a
// new one rather than modify one that was passed on.
type State struct {
	Addresses []Address // sorted by Addr, unique
	// Speakers are the hardware addresses of other nodes with a live speaker, and of nodes
	// whose speaker is dead but may resume. Such a node may answer for an address shortly
	// before or after this node; that is no conflict. This node's own addresses may be left
	// out.
	Speakers []MAC
	// Nodes are addresses of the other nodes of the cluster. If the kernel's neighbour
	// table has the sender of a conflicting packet under one of them, its MAC counts as one
	// of Speakers. This is for clusters where speakers do not exchange hardware addresses, and only
	// for these: a host that claims a node's address causes no conflict any longer.
	Nodes []netip.Addr
	// Pools are IPv4 networks, sorted, whose addresses may become this node's. Requests for
	// them are remembered for a second: a host that asked before the address had a node is
	// answered as soon as it has one, and need not ask again.
	Pools []netip.Prefix
}

// An Address is an address to answer for.
type Address struct {
	Addr netip.Addr // IPv4 or IPv6, unicast, without a zone
	// Interfaces are the names of the interfaces to answer on, sorted; empty: every
	// interface with the address's subnet. A name without an interface is ignored.
	Interfaces []string
	// Probe says that no node held the address before. The link is probed first for another
	// host that uses it (RFC 5227 §2.1.1, RFC 4862 §5.4), which takes less than a second.
	// Probe must be false on failover, which cannot wait. It has no effect on an address
	// that is held already.
	Probe bool
	// Round is any number. When it differs from the previous State, a held address is
	// announced again like a new one, and remains held: hosts may have received another
	// node's announcement.
	Round uint64
	// Yield gives the address up when another host claims it twice within 10 s (RFC 5227
	// §2.4 (b)). Otherwise it is kept, and defended by one announcement in 10 s (c).
	Yield bool
}

// String lists the state, one line for each entry. Golden files and logs use it.
func (s State) String() string {
	var b strings.Builder
	for _, a := range s.Addresses {
		fmt.Fprintf(&b, "answer %s\n", a)
	}
	for _, m := range s.Speakers {
		fmt.Fprintf(&b, "speaker %s\n", m)
	}
	return b.String()
}

func (a Address) String() string {
	text := a.Addr.String()
	if len(a.Interfaces) > 0 {
		text += " on " + strings.Join(a.Interfaces, " ")
	}
	if a.Probe {
		text += ", after a probe"
	}
	if a.Yield {
		text += ", yields"
	}
	return text
}

func (s State) equal(t State) bool {
	return s.equalButAddresses(t) && slices.EqualFunc(s.Addresses, t.Addresses, Address.Equal)
}

func (s State) equalButAddresses(t State) bool {
	return slices.Equal(s.Speakers, t.Speakers) && slices.Equal(s.Nodes, t.Nodes) && slices.Equal(s.Pools, t.Pools)
}

// Equal reports whether a and b are the same request, with the same probe and round.
func (a Address) Equal(b Address) bool {
	return a.Addr == b.Addr && a.Probe == b.Probe && a.Round == b.Round && a.Yield == b.Yield &&
		slices.Equal(a.Interfaces, b.Interfaces)
}

// fault says what is wrong with an address and what would be right; empty if it is valid.
func (a Address) fault() string {
	switch ip := a.Addr; {
	case !ip.IsValid():
		return "not an address: want IPv4 or IPv6"
	case ip.Is4In6():
		return "an IPv4 address written as IPv6: want " + ip.Unmap().String()
	case ip.Zone() != "":
		return "an address with a zone: want one that means the same on every node"
	case ip.IsUnspecified(), ip.IsMulticast(), ip.IsLoopback(), ip == limitedBroadcast:
		return "not a unicast address: no host can have it"
	case ip.IsLinkLocalUnicast():
		return "a link-local address: hosts take them for themselves"
	}
	return ""
}

var limitedBroadcast = netip.MustParseAddr("255.255.255.255")
