package cluster

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Reason is why something is done, or not done, for one address of one Service. Every decision
// has one.
type Reason struct {
	VIP      netip.Addr // invalid if it is about an address that the Service does not hold
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

// A Code is a verdict that programs can rely on, in CamelCase like the reasons of Kubernetes'
// conditions.
type Code string

// All is well:
const (
	ToAnnounce Code = "ToAnnounce" // This node is to announce the address: what is wanted, in `fanfare plan`.
	// This node announces the address: a router has the route, or the node holds the address over Layer 2.
	Announced  Code = "Announced"
	Programmed Code = "Programmed" // The kernel forwards the address.
	Assigned   Code = "Assigned"   // The Service holds the address.
)

// Not announced or not forwarded, because of the Service:
const (
	// No port of the Service has a usable endpoint on any node; the reason says why.
	NoEndpoints Code = "NoEndpoints"
	// `externalTrafficPolicy: Local`, and this node lacks ready pods of a port, which other nodes have; as intended.
	NoLocalEndpoint Code = "NoLocalEndpoint"
	// No source range of the Service is valid and of the address's family: no client may use it.
	NoSource Code = "NoSource"
	// More ports, endpoints or source ranges than an address can have, or the kernel refuses them. No other address
	// waits for it.
	ProxyRefused Code = "ProxyRefused"
)

// Announced, with a restriction because of the Service:
const (
	// `Local`, but no node has pods of all ports of the address: clients of the other ports do not keep their address.
	Elsewhere Code = "Elsewhere"
	// The namespace has the most entries in the node's kernel, and there is no room for more: the Service keeps the
	// ports and as many endpoints as it had.
	ProxyLimited    Code = "ProxyLimited"
	HealthPortTaken Code = "HealthPortTaken" // Another process listens on the Service's `healthCheckNodePort`.
	// An annotation asks for a community or a node that the AddressPool does not allow, or for a community on an
	// aggregate: left out.
	AnnotationRefused Code = "AnnotationRefused"
)

// Not announced, because of the node or its routers:
const (
	NoPeer Code = "NoPeer" // No BGPPeer selects this node.
	// The node has the label `node.kubernetes.io/exclude-from-external-load-balancers`.
	NodeExcluded Code = "NodeExcluded"
	NodeLeaving  Code = "NodeLeaving" // A taint marks the node as leaving.
	// A setting or a rule of the node certainly drops traffic to the address's endpoints; the reason says which.
	Obstructed Code = "Obstructed"
	// No Node object has this name, the Node is not Ready, or its network is not up.
	NodeUnavailable Code = "NodeUnavailable"
)

// Because of a BGPAdvertisement or an L2Advertisement:
const (
	// Advertisements name the pool, and none selects both the Service and the node: not announced.
	NotAdvertised Code = "NotAdvertised"
	// The aggregate would contain addresses outside of the pools: announced without it.
	AggregateRefused  Code = "AggregateRefused"
	AggregateTooWide  Code = "AggregateTooWide"  // The aggregate contains addresses of no pool; announced.
	NoNode            Code = "NoNode"            // The nodeSelector matches no Node.
	AttributesRefused Code = "AttributesRefused" // Communities do not fit into a BGP message: the route is left out.
	// Two set different attributes for one prefix and router: the more specific one applies.
	AttributeOverride Code = "AttributeOverride"
	// Two set different attributes, and none is more specific: the first by name applies.
	AttributeClash Code = "AttributeClash"
)

// Not announced over Layer 2 by this node:
const (
	AnotherNode  Code = "AnotherNode"  // Another node answers for the address.
	NoCandidate  Code = "NoCandidate"  // No node can answer for the address.
	AddressInUse Code = "AddressInUse" // A host without a speaker uses the address.
	// This node has no interface in the address's subnet, although its last report had one.
	NoInterface Code = "NoInterface"
)

// Not yet:
const (
	WaitingForNodes   Code = "WaitingForNodes"   // The other nodes are not known yet.
	WaitingForRelease Code = "WaitingForRelease" // Another node still answers for the address.
	WaitingForProbe   Code = "WaitingForProbe"   // A probe asks whether another host uses the address.
	// The kernel does not have the rules yet, or accepts no changes: see *Needs attention*.
	WaitingForProxy Code = "WaitingForProxy"
	// No router that should receive it has a session; the reason has the cause.
	WaitingForSession Code = "WaitingForSession"
	Lingering         Code = "Lingering" // Withdrawn, and still forwarded while routers process that.
)

// The Service has no address, or not all that it asks for:
const (
	Unassigned      Code = "Unassigned"      // The controller has assigned none; the reason has the cause.
	NoPool          Code = "NoPool"          // No pool exists, or none admits this Service.
	PoolExhausted   Code = "PoolExhausted"   // All addresses of the pools are taken.
	RequestRefused  Code = "RequestRefused"  // The requested address or pool is not available.
	AddressConflict Code = "AddressConflict" // Another Service holds the address, or a node or a router has it.
	QuotaExceeded   Code = "QuotaExceeded"   // Its namespace has as many addresses of the pool as it may have.
	NotOurs         Code = "NotOurs"         // Its status has an address of no pool: another implementation's.
	// Without a controller: another node could compute another address for the Service.
	PositionConflict Code = "PositionConflict"
)

// The Service keeps its address, although it would not get it now, or its status says something else:
const (
	// Another controller changed the status. The AddressClaim proves whose the address is: it stays, and is written
	// back.
	StatusOverwritten   Code = "StatusOverwritten"
	PoolGone            Code = "PoolGone"            // No pool contains the address now.
	PoolExcludesService Code = "PoolExcludesService" // The pool now excludes the Service.
	SharingKept         Code = "SharingKept"         // It shares the address in a way that would not be allowed now.
	// Its annotations contradict each other; the message says which one applies. It may have an address.
	Contradiction Code = "Contradiction"
	// It has an annotation of Fanfare's or MetalLB's domain that does not exist. It may have an address.
	UnknownAnnotation Code = "UnknownAnnotation"
	// A field or an annotation has an invalid value, which is left out or replaced; the message says how. It may have
	// an address.
	FieldIgnored Code = "FieldIgnored"
)

// Forwards reports whether connections are forwarded if this is the proxy's reason.
func (c Code) Forwards() bool { return c == Programmed || c == Elsewhere || c == ProxyLimited }

// Announces reports whether an address is announced if this is BGP's reason: some reasons only
// qualify an announcement.
func (c Code) Announces() bool {
	return c == ToAnnounce || c == Announced || c == AggregateRefused || c == AttributeOverride ||
		c == AttributeClash || c == AnnotationRefused
}

// Enumerate lists names for a sentence: the first ones, and the number of the others.
func Enumerate(names []string) string {
	const most = 4
	if more := len(names) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
