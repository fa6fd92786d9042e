package l2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A State is everything that this node shall answer for. It is a plain value: build a
// new one rather than change one that has been passed on.
type State struct {
	Addresses []Address // sorted by Addr, unique
	// Speakers are the hardware addresses of other nodes whose speakers live, and of
	// those that have died but may thaw: that they answer for an address for a moment
	// longer or earlier than this node is no conflict. This node's own need not be among
	// them.
	Speakers []MAC
	// Nodes are addresses of the other nodes of the cluster. Who the kernel knows by one
	// of them, on the link in question, counts as one of Speakers as soon as there is a
	// conflict with him: where speakers do not talk to one another nobody names their hardware addresses.
	Nodes []netip.Addr
}

// An Address is one to answer for.
type Address struct {
	Addr netip.Addr // IPv4 or IPv6, unicast, without a zone
	// Interfaces are the names of those to answer on, sorted; empty: every one that
	// has the address's subnet. A name that is on no interface is none.
	Interfaces []string
	// Probe says that nobody held the address until now: the link is asked first
	// whether somebody uses it (RFC 5227 §2.1.1, RFC 4862 §5.4), which takes less than
	// a second. It must be false on failover, which cannot wait for that. Of an address
	// that is answered for already it means nothing.
	Probe bool
	// Round is any number. When it is another one than in the State before, an address that
	// is answered for is announced as when it was taken, and answered for all the while: hosts
	// may have heard another node say that it has it.
	Round uint64
}

// String says what the state does, a line each, in an operator's words. Golden files
// and logs use it.
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
	return text
}

func (s State) equal(t State) bool {
	return slices.Equal(s.Speakers, t.Speakers) && slices.Equal(s.Nodes, t.Nodes) && slices.EqualFunc(s.Addresses, t.Addresses, Address.equal)
}

func (a Address) equal(b Address) bool {
	return a.Addr == b.Addr && a.Probe == b.Probe && a.Round == b.Round && slices.Equal(a.Interfaces, b.Interfaces)
}

// fault says what is wrong with an address, and what would be right; or nothing.
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
