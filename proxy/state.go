package proxy

import (
	"net/netip"
)

// A State is everything that the proxy of one node shall forward. It is a plain
// value that is never written after it is built; what did not change since the
// State before is the same *VIP, which is how Set finds out in a time that
// depends on the number of changes.
type State struct {
	Node string // this node's name; a Backend on another one is remote
	VIPs []*VIP // sorted by Addr, no two alike

	// Owned are the prefixes whose addresses belong to Fanfare. A packet to one
	// of them that is no VIP is refused before conntrack sees it, so that it
	// leaves no entry behind: such an entry would send that client port past
	// the rules for as long as it lives, once the VIP exists. Addresses that
	// are the node's own are exempt, whatever a careless pool contains.
	Owned []netip.Prefix // sorted, not overlapping

	Clients LocalClients
}

// LocalClients says which traffic comes from this node's own pods. Such a
// client is internal: it reaches all endpoints whatever externalTrafficPolicy
// says, and keeps its address. Processes of the host are always internal. What
// any of the criteria matches is local.
type LocalClients struct {
	CIDRs           []netip.Prefix // sorted, not overlapping
	InterfacePrefix string         // such as "cali" or "veth"; empty: unused
	Bridge          string         // such as "cni0"; empty: unused
}

// A VIP is an address and what is served on it. Immutable.
type VIP struct {
	Addr      netip.Addr
	Frontends []Frontend // sorted by Protocol, then Port; none: every port is refused
}

// A Frontend is one port of an address.
type Frontend struct {
	Protocol Protocol
	Port     uint16
	// Name says what this is to people, such as "shop/web:http". It is not
	// interpreted and does not reach the kernel.
	Name string

	External Target // for clients outside this node
	Internal Target // for this node's pods and processes
}

// A Target says what becomes of a new flow.
type Target struct {
	// Backends share the flows evenly. Sorted, no two alike.
	Backends []Backend
	// Miss is what happens when there are no Backends.
	Miss Miss
	// Remote says how backends on other nodes are reached.
	Remote Remote
}

// A Backend is an endpoint that flows are sent to.
type Backend struct {
	Addr netip.AddrPort
	Node string // empty: unknown, so remote
}

// Miss is what happens to a flow for which there is no backend.
type Miss uint8

const (
	// Reject refuses: nobody could answer (RST, or ICMP port unreachable).
	Reject Miss = iota
	// Drop is silent, so that the client tries again: another node could answer.
	Drop
)

// Remote says how an endpoint on another node is reached, and so what source
// address it sees. A third way, through a relay on the endpoint's node that
// needs no new source, has its place here.
type Remote uint8

const (
	// Masquerade gives the flow this node's address, so that the reply comes
	// back this way.
	Masquerade Remote = iota
	// Preserve leaves the source alone: for clients on this node, whose
	// replies pass here anyway.
	Preserve
)

// Protocol is an IP protocol number.
type Protocol uint8

const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)
