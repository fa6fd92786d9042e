package proxy

import "github.com/fanfare-lb/fanfare/proxy/state"

// The input of a [Proxy]. The types and their documentation are in package state, which the
// backends share.
type (
	// A State is everything that the proxy of one node must forward.
	State = state.State
	// A VIP is an address and what is served on it, and a Frontend one port of it. VIPs are a sorted
	// set of them.
	VIP      = state.VIP
	VIPs     = state.VIPs
	Frontend = state.Frontend
	// A Target says where a new flow goes, and a Backend is an endpoint that it is sent to.
	Target  = state.Target
	Backend = state.Backend

	Protocol  = state.Protocol
	Scheduler = state.Scheduler
	Miss      = state.Miss
	Remote    = state.Remote

	// LocalClients says which traffic comes from this node's own pods.
	LocalClients = state.LocalClients
	// SNAT says how the source of a flow is replaced.
	SNAT  = state.SNAT
	Ports = state.Ports
	Mark  = state.Mark

	// A Redirect names nodes that may have connections to a VIP that this node does not know.
	Redirect = state.Redirect
)

// MaxRedirects is how many nodes redirect one packet at most.
const MaxRedirects = state.MaxRedirects

const (
	TCP  = state.TCP
	UDP  = state.UDP
	SCTP = state.SCTP

	Random     = state.Random
	RoundRobin = state.RoundRobin
	SourceHash = state.SourceHash
	Maglev     = state.Maglev

	Reject = state.Reject
	Drop   = state.Drop

	Masquerade = state.Masquerade
	Preserve   = state.Preserve

	PortFullyRandom = state.PortFullyRandom
	PortRandom      = state.PortRandom
	PortKept        = state.PortKept
)

// CompareVIPs orders by address, as a State does.
func CompareVIPs(a, b *VIP) int { return state.CompareVIPs(a, b) }

// PlainIfname reports whether all programs that load rules take the name of an interface literally.
func PlainIfname(name string) bool { return state.PlainIfname(name) }

// A Mode is the kernel interface that the rules are written to.
type Mode = state.Mode

const (
	ModeAuto     = state.ModeAuto
	ModeNFTables = state.ModeNFTables
	ModeIPTables = state.ModeIPTables
)

// ParseMode reads a Mode; empty is ModeAuto.
func ParseMode(s string) (Mode, error) { return state.ParseMode(s) }

// Limits are the limits for one address.
type Limits = state.Limits

// DefaultLimits returns the limits of a mode. [ModeAuto] has those of nftables.
func DefaultLimits(m Mode) Limits { return state.DefaultLimits(m) }

// Refused is an error of [Proxy.Set]: everything in the State is set except for the addresses
// of its Refusals, which stay as they were.
type (
	Refused = state.Refused
	Refusal = state.Refusal
)
