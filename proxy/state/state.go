package state

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A State is everything that the proxy of one node must forward. It is a plain value and immutable.
// An unchanged VIP is the same *VIP as in the previous State, so that the duration of Set depends
// on the number of changes.
type State struct {
	Node string // this node's name; a Backend on another one is remote
	VIPs VIPs   // by Addr; versions share what they have in common

	// Owned are the prefixes whose addresses belong to Fanfare. A packet to an owned address that
	// is not a VIP is rejected before conntrack sees it, so that it leaves no entry: once the VIP
	// exists, such an entry would make packets from that client port bypass the rules. The node's
	// own addresses are exempt, even if a pool contains them by mistake.
	Owned []netip.Prefix // sorted, not overlapping

	Clients LocalClients

	SNAT SNAT

	// Outward are the names of the interfaces by which external clients arrive. Only the fast path
	// uses them: it takes flows only there.
	Outward []string // sorted

	// Redirects are the other owners of VIPs, for as long as connections that began there may live.
	// Sorted by VIP and Interface, unique.
	Redirects []Redirect
	// Taking are the VIPs that this node will begin to answer for on a link after Set. Set deletes
	// the entries of their ended connections, which would block live ones.
	Taking []netip.Addr // sorted
}

// SNAT says how the source of a flow is replaced where a Target or a hairpin needs it. The zero
// value masquerades, with fully random ports.
type SNAT struct {
	Ports Ports
	// Sources are the addresses to use instead of the outgoing interface's, at most one for each
	// family: a node may have many addresses, and a firewall may know only one. They must be the
	// node's own.
	Sources []netip.Addr
	// Never are networks of backends whose flows keep their source, because the network itself
	// routes their replies back through this node. Hairpins are still masqueraded: a pod would
	// answer itself directly.
	Never []netip.Prefix // sorted, not overlapping
	// Mark is set on the first packet of a flow whose source is replaced, without changing other
	// bits, so that other programs' rules can recognise it. The zero value sets no mark, unless the
	// renderer needs its own.
	Mark Mark
}

// Ports says how the source port of a replaced source is chosen.
type Ports uint8

const (
	// PortFullyRandom is the kernel's --random-fully: nodes and CPUs that choose at the same time
	// rarely choose the same port (kubernetes#56903).
	PortFullyRandom Ports = iota
	// PortRandom hashes the flow with a secret, the kernel's --random.
	PortRandom
	// PortKept keeps the client's port if it is free.
	PortKept
)

// A Mark is a part of the packet mark. Bits outside of Mask belong to other programs.
type Mark struct {
	Value, Mask uint32 // Value has no bit outside of Mask
}

// LocalClients says which traffic comes from this node's own pods. Such a client is internal: it
// reaches all endpoints regardless of externalTrafficPolicy, and keeps its address. Processes of
// the host are always internal. A client that matches any criterion is local.
type LocalClients struct {
	CIDRs           []netip.Prefix // sorted, not overlapping
	InterfacePrefix string         // such as "cali" or "veth"; empty: unused
	Bridge          string         // such as "cni0"; empty: unused
}

// A VIP is an address and what is served on it. Immutable.
type VIP struct {
	Addr      netip.Addr
	Frontends []Frontend // sorted by Protocol, then Port; none: every port is rejected
}

// VIPs are the addresses of a State, in the order of [CompareVIPs]. A State with one change shares
// most of the memory of its VIPs with the previous State.
type VIPs = sortedset.Set[*VIP]

// CompareVIPs orders by address.
func CompareVIPs(a, b *VIP) int { return a.Addr.Compare(b.Addr) }

// CompareAddr compares the address of a VIP with another one, in the order of [CompareVIPs].
func (v *VIP) CompareAddr(a netip.Addr) int { return v.Addr.Compare(a) }

// Equal reports whether v and o have the same content.
func (v *VIP) Equal(o *VIP) bool {
	return v.Addr == o.Addr && slices.EqualFunc(v.Frontends, o.Frontends,
		func(a, b Frontend) bool { return a.equal(&b) })
}

// A Frontend is one port of an address.
type Frontend struct {
	Protocol Protocol
	Port     uint16
	// Name is for people, such as "shop/web:http". It is not interpreted and does not reach the
	// kernel.
	Name string

	External Target // for clients outside this node
	Internal Target // for this node's pods and processes

	Scheduler Scheduler
	// Affinity is how long a client without an open flow still gets its previous backend, 1 s to 24
	// h; zero: each flow is scheduled separately.
	Affinity time.Duration
	// Sources are the networks of external and internal clients that may use the frontend; nil:
	// all. Flows from other sources are dropped, as for spec.loadBalancerSourceRanges, and existing
	// flows that become forbidden end.
	Sources []netip.Prefix // sorted, not overlapping
	// Draining are backends, such as terminating pods, that get no new flows but keep existing
	// ones. A TCP flow to a backend that is neither in a Target nor here ends with a reset.
	Draining []netip.AddrPort // sorted, no two alike
}

func (f *Frontend) equal(o *Frontend) bool {
	return f.Protocol == o.Protocol && f.Port == o.Port && f.Name == o.Name && f.Scheduler == o.Scheduler &&
		f.Affinity == o.Affinity && f.External.equal(&o.External) && f.Internal.equal(&o.Internal) &&
		// nil allows all sources, an empty list none.
		(f.Sources == nil) == (o.Sources == nil) && slices.Equal(f.Sources, o.Sources) &&
		slices.Equal(f.Draining, o.Draining)
}

// A Target says where a new flow goes.
type Target struct {
	// Backends share the flows according to the scheduler. Sorted, unique.
	Backends []Backend
	// Miss is what happens without Backends.
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
	// Weight is the share relative to the others, for schedulers that respect it; zero counts as
	// one.
	Weight uint16
}

// Miss is what happens to a flow without a backend.
type Miss uint8

const (
	// Reject: no node could answer, so the flow is rejected (RST, or ICMP port unreachable).
	Reject Miss = iota
	// Drop: another node could answer, so the packet is dropped and the client retries.
	Drop
)

// Remote says how an endpoint on another node is reached, and so which source address it sees. A
// relay on the endpoint's node, which needs no new source, would be a third value.
type Remote uint8

const (
	// Masquerade replaces the source by this node's address, so that replies return through this
	// node.
	Masquerade Remote = iota
	// Preserve keeps the source, for clients on this node: replies to them pass here anyway.
	Preserve
)

// Protocol is an IP protocol number.
type Protocol uint8

const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
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
	_, found := slices.BinarySearchFunc(t.Backends, backend,
		func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) })
	return found
}
