package fastpath

import "net/netip"

// DefaultDir is where what must outlive a process is pinned, in the file system of BPF.
const DefaultDir = "/sys/fs/bpf/fanfare"

// DefaultFlows is how many flows there is room for.
const DefaultFlows = 262_144

// The protocols that are taken.
const (
	TCP uint8 = 6
	UDP uint8 = 17
)

// A State is all that the fast path of one node must do. It is a plain value that is
// never written after it is built.
type State struct {
	// Outward are the names of the interfaces that clients outside come in by; sorted.
	Outward []string
	// Clients are sources whose packets are left to the rules; sorted, not overlapping.
	Clients []netip.Prefix
	// VIPs are all addresses that there are rules for; sorted, no two alike. What did not
	// change since the State before is the same *VIP, which is how a Path finds out what did.
	VIPs []*VIP
	// Owned are prefixes in which the flows of a former VIP end.
	Owned []netip.Prefix // sorted, not overlapping
}

// A VIP is an address and what is served on it. Immutable.
type VIP struct {
	Addr netip.Addr
	// Frontends are all its ports of TCP and UDP; sorted by Addr, then Protocol.
	Frontends []Frontend
}

// A Frontend is one port of an address.
type Frontend struct {
	Addr     netip.AddrPort // the VIP's
	Protocol uint8          // TCP or UDP
	// Take says whether new flows are taken. Without it only existing flows stay.
	Take bool
	// Backends share new flows by their weights, and keep the flows that they have. Sorted.
	Backends []Backend
	// Draining get no new flows and keep the flows that they have. A flow to a backend that is in
	// neither list ends. Sorted.
	Draining []netip.AddrPort
	// Sources are the networks whose flows may stay; nil: all. Where they are not nil, Take
	// is false. Sorted, not overlapping.
	Sources []netip.Prefix
}

// A Backend is an endpoint on this node.
type Backend struct {
	Addr   netip.AddrPort
	Weight uint16 // its share in relation to the others'; not zero
}

// A Flow is a flow that ended because its backend or its address went.
type Flow struct {
	Client, VIP, Backend netip.AddrPort
	Protocol             uint8
}

// A Status is what the fast path does.
type Status struct {
	Interfaces []string // the interfaces of State.Outward that have the program
	// Flows are there now, of Capacity at most. Full counts the new flows that were left
	// to the rules for want of room, since the program was loaded first.
	Flows, Capacity int
	Full            uint64
	// Left are frontends with Take that are left to the rules all the same; sorted.
	Left []Left
	// Problems are what is not as State wants it, a sentence each, such as an interface that is not there.
	Problems []string
	// Repairs counts how often another program had detached or unpinned something, and Found says
	// what the last time.
	Repairs uint64
	Found   string
	// Busy: flows are still looked at, for what has to end, or to be taken over.
	Busy bool
}

// A Left is a frontend that is left to the rules.
type Left struct {
	Addr     netip.AddrPort
	Protocol uint8
	Why      string // such as "no interface leads to backend 10.244.1.2:80"
}
