package state

import (
	"net/netip"
	"slices"
	"time"
)

// A State is everything that the proxy of one node must forward. It is a plain
// value that is never written after it is built. An unchanged VIP is the same *VIP as in
// the State before, so that Set takes a time that depends on the number of changes.
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

	SNAT SNAT

	// Outward are the names of the interfaces by which clients outside come in. Only
	// the fast path asks for them, and takes flows there alone.
	Outward []string // sorted

	// Redirects are the other owners of VIPs, as long as connections that began there may
	// live. Sorted by VIP and Interface, no two alike.
	Redirects []Redirect
	// Taking are the VIPs that this node will answer for on a link after Set and does not
	// yet. Set deletes its entries of their ended connections, which would block live ones.
	Taking []netip.Addr // sorted
}

// SNAT says how the source of a flow is replaced where a Target or a hairpin
// needs it. The zero value masquerades, to ports fully at random.
type SNAT struct {
	Ports Ports
	// Sources are the addresses to use instead of that of the interface by
	// which the flow leaves, at most one for each family: a node may have many,
	// and a firewall may know only one. They must be the node's own.
	Sources []netip.Addr
	// Never are networks of backends whose flows keep their source, since the
	// network itself brings their replies back this way. Hairpins are replaced
	// all the same: a pod answers itself directly.
	Never []netip.Prefix // sorted, not overlapping
	// Mark is set, and no other bit changed, on the first packet of a flow whose
	// source is replaced, so that rules of others can tell. The zero value marks
	// nothing where the renderer needs no mark of its own.
	Mark Mark
}

// Ports is how the source port of a replaced source is chosen.
type Ports uint8

const (
	// PortFullyRandom is the kernel's --random-fully: nodes and CPUs that choose at the
	// same time seldom choose alike (kubernetes#56903).
	PortFullyRandom Ports = iota
	// PortRandom hashes the flow with a secret, the kernel's --random.
	PortRandom
	// PortKept keeps the client's port where it is free.
	PortKept
)

// A Mark is bits of the packet mark. Those outside of Mask are others'.
type Mark struct {
	Value, Mask uint32 // Value has no bit outside of Mask
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

// Equal reports whether o says the same.
func (v *VIP) Equal(o *VIP) bool {
	return v.Addr == o.Addr && slices.EqualFunc(v.Frontends, o.Frontends, func(a, b Frontend) bool { return a.equal(&b) })
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

	Scheduler Scheduler
	// Affinity is how long a client without an open flow comes back to the
	// backend that it had, 1 s to 24 h; zero: each flow is scheduled by itself.
	Affinity time.Duration
	// Sources are the networks of clients that may use the frontend, external and
	// internal ones; nil: all. A flow of another is dropped, as
	// spec.loadBalancerSourceRanges has it, and flows that became forbidden end.
	Sources []netip.Prefix // sorted, not overlapping
	// Draining are backends that get no new flows but keep the flows that they
	// have: a pod that terminates. A TCP flow to a backend that is neither in a
	// Target nor here ends with a reset.
	Draining []netip.AddrPort // sorted, no two alike
}

func (f *Frontend) equal(o *Frontend) bool {
	return f.Protocol == o.Protocol && f.Port == o.Port && f.Name == o.Name && f.Scheduler == o.Scheduler && f.Affinity == o.Affinity &&
		f.External.equal(&o.External) && f.Internal.equal(&o.Internal) &&
		// No list allows all sources, and an empty list none.
		(f.Sources == nil) == (o.Sources == nil) && slices.Equal(f.Sources, o.Sources) && slices.Equal(f.Draining, o.Draining)
}

// A Target says what becomes of a new flow.
type Target struct {
	// Backends share the flows as the scheduler has it. Sorted, no two alike.
	Backends []Backend
	// Miss is what happens when there are no Backends.
	Miss Miss
	// Remote says how backends on other nodes are reached.
	Remote Remote
}

func (t *Target) equal(o *Target) bool {
	return t.Miss == o.Miss && t.Remote == o.Remote && slices.Equal(t.Backends, o.Backends)
}

// A Backend is an endpoint that flows are sent to.
type Backend struct {
	Addr netip.AddrPort
	Node string // empty: unknown, so remote
	// Weight is its share in relation to the others', for the schedulers that respect
	// it; zero counts as one.
	Weight uint16
}

// Miss is what happens to a flow for which there is no backend.
type Miss uint8

const (
	// Reject refuses: no node could answer (RST, or ICMP port unreachable).
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
