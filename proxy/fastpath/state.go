package fastpath

import "net/netip"

// DefaultDir is the directory on the BPF file system where maps and links are pinned, so that
// they outlive the process. A container must mount /sys/fs/bpf of the host.
const DefaultDir = "/sys/fs/bpf/fanfare"

// DefaultFlows is the default capacity, in flows: about 64 MiB of kernel memory if the table is
// full. It equals the kernel's default nf_conntrack_max on a machine with more than 4 GiB.
const DefaultFlows = 262_144

// Protocol numbers of the flows that the fast path takes, as in IP headers (IANA).
const (
	TCP uint8 = 6
	UDP uint8 = 17
)

// A State lists everything that the fast path of one node must do. It is a plain value;
// never modify it after it is built.
type State struct {
	// Outward are the names of the interfaces on which packets of external clients arrive;
	// sorted.
	Outward []string
	// Clients are sources whose packets are left to the rules, such as pods of this node;
	// sorted, not overlapping.
	Clients []netip.Prefix
	// VIPs are all addresses that have rules; sorted, unique. An unchanged VIP must be the
	// same pointer as in the previous State: a Datapath detects changes by pointers.
	VIPs []*VIP
	// Owned are the prefixes of all possible VIPs: flows to an address in them end when it
	// is no longer a VIP. Sorted, not overlapping.
	Owned []netip.Prefix
}

// A VIP is an address and its ports. Immutable.
type VIP struct {
	Addr netip.Addr // of IPv4 or IPv6; never IPv4-mapped, never with a zone
	// Frontends are all its TCP and UDP ports; sorted by Addr, then Protocol.
	Frontends []Frontend
}

// CompareAddr compares the address of a VIP with another one, in the order of State.VIPs.
func (v *VIP) CompareAddr(a netip.Addr) int { return v.Addr.Compare(a) }

// A Frontend is one port of an address.
type Frontend struct {
	Addr     netip.AddrPort // the VIP's
	Protocol uint8          // TCP or UDP
	// Take says whether the fast path takes new flows. Existing flows continue in any case. The
	// frontends that share a backend's address and port must have the same Take: otherwise the
	// fast path and conntrack could give one client port to two flows there.
	Take bool
	// Backends get new flows by their weights, and keep existing flows. Sorted.
	Backends []Backend
	// Draining are backends that get no new flows, and keep existing ones. Sorted.
	Draining []netip.AddrPort
	// Replying are backends that get no more packets: the next packet of a client begins another
	// flow. Their replies still pass. For UDP only. A flow to a backend in none of the lists
	// ends. Sorted.
	Replying []netip.AddrPort
	// Sources are the client networks whose flows may continue; nil: all. If it is not nil,
	// Take must be false. Sorted, not overlapping.
	Sources []netip.Prefix
}

// A Backend is an endpoint on this node.
type Backend struct {
	Addr   netip.AddrPort // the pod's; of the family of the frontend
	Weight uint16         // relative to the other backends'; 0 counts as 1
}

// A Flow is a TCP connection, or the datagrams between one client port and a VIP.
type Flow struct {
	// Client and VIP are the endpoints before translation, Backend is the destination after it.
	Client, VIP, Backend netip.AddrPort
	Protocol             uint8 // TCP or UDP
}

// A Status describes the state of the fast path.
type Status struct {
	Interfaces []string // the interfaces of State.Outward that have the program
	// Flows is the number of flows at the last walk, Capacity the maximum. Full counts new
	// flows that the rules got because the table had no room, or none for another flow of their
	// address, since its maps were created.
	Flows, Capacity int
	Full            uint64
	// Limited are the addresses that have as many flows as they may have; sorted.
	Limited []Limit
	// NotOffloaded are frontends with Take whose new flows the rules still get; sorted.
	NotOffloaded []NotOffloaded
	// Problems are sentences about what differs from State, such as a missing interface.
	Problems []string
	// Repairs counts how often another program had detached or unpinned something; Found
	// describes the last time.
	Repairs uint64
	Found   string
	// Busy says that a check of flows, a takeover of UDP flows or a route lookup is pending.
	// Tests wait for it to become false.
	Busy bool
}

// A NotOffloaded is a frontend whose new flows the rules get, and why.
type NotOffloaded struct {
	Addr     netip.AddrPort // the frontend's
	Protocol uint8          // TCP or UDP
	Why      string         // such as "no route to backend 10.244.1.2"
}
