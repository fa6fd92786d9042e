package cluster

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Problem is something wrong with an object that a user wrote, in words that
// say what to change. Everything that the object has nothing to do with goes on
// working.
type Problem struct {
	Object  string // kind and name, such as "AddressPool lan" or "Service shop/web"
	File    string // where it came from, empty with an API server
	Field   string // such as "spec.addresses[1]", empty when it is the whole object
	Value   string // what stands there, empty when nothing does
	Message string // what is wrong and what would be right
	// Code is why the object is not Ready, empty when the object itself is wrong.
	Code Code
	// Warning: the object works as it says, but perhaps not as its author meant.
	Warning bool
}

func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Object)
	if p.File != "" {
		fmt.Fprintf(&b, " (%s)", p.File)
	}
	if p.Field != "" {
		fmt.Fprintf(&b, ": %s", p.Field)
	}
	if p.Value != "" {
		fmt.Fprintf(&b, " %q", p.Value)
	}
	return b.String() + ": " + p.Message
}

// A Reason is why something is done, or is not, for one address of one Service.
// Every yes and every no has one.
type Reason struct {
	VIP      netip.Addr // invalid when it is about an address that the Service does not hold
	Service  Name
	Protocol string // the part of Fanfare that decided: "ipam", "proxy" "bgp" or "l2"
	Code     Code
	Message  string // a sentence for a person, with the names and numbers that matter
}

func (r Reason) String() string {
	vip := "-"
	if r.VIP.IsValid() {
		vip = r.VIP.String()
	}
	return fmt.Sprintf("%s %s %s %s: %s", vip, r.Service, r.Protocol, r.Code, r.Message)
}

// A Code is a verdict that programs can rely on: CamelCase, as the reasons of
// Kubernetes' conditions are.
type Code string

const (
	// Yes.
	Announced  Code = "Announced"  // this node announces the address
	Programmed Code = "Programmed" // the kernel forwards the address
	Assigned   Code = "Assigned"   // the Service holds the address

	// Not, because of the Service.
	NoEndpoints     Code = "NoEndpoints"     // nothing is ready anywhere
	NoLocalEndpoint Code = "NoLocalEndpoint" // externalTrafficPolicy Local and nothing on this node
	Elsewhere       Code = "Elsewhere"       // Local, but forwarded to other nodes: Services that share the address are there
	NoSource        Code = "NoSource"        // its source ranges admit no client of the address's family
	HealthPortTaken Code = "HealthPortTaken" // another process has its healthCheckNodePort
	ProxyRefused    Code = "ProxyRefused"    // more ports or endpoints than an address can have here, or the kernel refuses them

	// Not, because of the node or its peers.
	NoPeer          Code = "NoPeer"          // no peer selects this node
	NodeExcluded    Code = "NodeExcluded"    // the node's label forbids it
	NodeLeaving     Code = "NodeLeaving"     // a taint says that the node is going away
	NodeUnavailable Code = "NodeUnavailable" // the node's network is not up

	// Not, or not so, because of a BGPAdvertisement.
	NotAdvertised    Code = "NotAdvertised"    // some are about the pool, and none selects the Service and the node
	AggregateRefused Code = "AggregateRefused" // an aggregate would contain what is not ours; announced without it
	AggregateTooWide Code = "AggregateTooWide" // an aggregate contains addresses of no pool; announced
	NoNode           Code = "NoNode"           // its nodeSelector matches no Node
	// Not announced by a route whose attributes no BGP message can carry.
	AttributesRefused Code = "AttributesRefused"
	// Two tell a router different things of one prefix.
	AttributeOverride Code = "AttributeOverride" // the more specific one counts
	AttributeClash    Code = "AttributeClash"    // neither is more specific; the first by name counts

	// Not over L2, on this node.
	AnotherNode  Code = "AnotherNode"  // another node answers for it
	NoCandidate  Code = "NoCandidate"  // no node can answer for it
	AddressInUse Code = "AddressInUse" // a host without a speaker answers for it
	NoInterface  Code = "NoInterface"  // this node has none with its subnet, though it seemed to have

	// Not yet.
	WaitingForNodes   Code = "WaitingForNodes"   // other nodes are not known yet
	WaitingForRelease Code = "WaitingForRelease" // another node still answers for it
	WaitingForProbe   Code = "WaitingForProbe"   // a probe asks whether another host uses it
	WaitingForProxy   Code = "WaitingForProxy"   // to be announced once the kernel forwards it
	WaitingForSession Code = "WaitingForSession" // no router has a session
	Lingering         Code = "Lingering"         // withdrawn, still forwarded while routers process that

	// No address, or a doubtful one.
	Unassigned       Code = "Unassigned"       // the controller has not given it one
	NoPool           Code = "NoPool"           // no pool to take an address from
	PoolExhausted    Code = "PoolExhausted"    // every address of the pools is taken
	RequestRefused   Code = "RequestRefused"   // the requested address or pool cannot be had
	AddressConflict  Code = "AddressConflict"  // another Service holds the address, or a node or a router has it
	QuotaExceeded    Code = "QuotaExceeded"    // its namespace may have no more addresses of the pool
	SharingKept      Code = "SharingKept"      // two share an address that would not be let to now
	Contradiction    Code = "Contradiction"    // the Service asks for two things at once; one counts
	PoolGone         Code = "PoolGone"         // the address is kept although its pool no longer has it
	PoolFenced       Code = "PoolFenced"       // the address is kept although the pool is for others
	NotOurs          Code = "NotOurs"          // the status names an address of no pool: another implementation's
	PositionConflict Code = "PositionConflict" // another node could come to another address for the Service
)

// Forwards says whether connections are forwarded with this reason of the proxy's.
func (c Code) Forwards() bool { return c == Programmed || c == Elsewhere }

// Announces says whether an address with this reason of BGP's is announced: there
// are reasons for how as well.
func (c Code) Announces() bool {
	return c == Announced || c == AggregateRefused || c == AttributeOverride || c == AttributeClash
}

// Enumerate lists names for a sentence: the first ones, and how many more there are.
func Enumerate(names []string) string {
	const most = 4
	if more := len(names) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
