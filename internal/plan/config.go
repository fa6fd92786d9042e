package plan

import (
	"net/netip"

	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// Config is the configuration of a node's speaker, and its state outside of the snapshot.
type Config struct {
	Node string // the name of this node's Node object

	// DetectLocal is which traffic is from this node's own pods; see proxy.LocalClients. With
	// NodeCIDR, the Node's podCIDRs count too, and with DetectPods what Pods says.
	DetectLocal          proxy.LocalClients
	NodeCIDR, DetectPods bool
	// Pods is what is known about the network of this node's pods, which may change.
	Pods PodNetwork

	// SNAT is how sources are masqueraded.
	SNAT proxy.SNAT

	// Gateways are this node's default gateways, which may change.
	Gateways Gateways

	// Members are the nodes of the membership, which may change; nil without one.
	Members *membership.Members

	// Interfaces are this node's interfaces for Layer 2, which may change; nil: unknown, and
	// any address has one.
	Interfaces []l2.Interface

	// Returning: this node is in its hold-down, in which other nodes are preferred. It may
	// change.
	Returning bool

	// HealthChecks selects the Services whose healthCheckNodePort is served here.
	HealthChecks HealthChecks

	// Blockade is the flows that certainly fail on this node, which may change; nil: none.
	Blockade *obstacle.Blockade

	// Limits are the limits of this node's proxy; zero: the limits of nftables mode.
	Limits proxy.Limits
	// Refused are the addresses that this node's proxy has refused, which may change.
	Refused *Refused
}

// Gateways are a node's default gateways by address family, invalid if unknown.
type Gateways struct{ IPv4, IPv6 netip.Addr }

// HealthChecks selects Services whose healthCheckNodePort is served.
type HealthChecks uint8

const (
	// HealthChecksLabelled selects Services that kube-proxy ignores because of the label
	// service.kubernetes.io/service-proxy-name. It serves the ports of the others.
	HealthChecksLabelled HealthChecks = iota
	// HealthChecksAll selects all Services, for a cluster without kube-proxy.
	HealthChecksAll
	// HealthChecksNone selects no Service.
	HealthChecksNone
)
