package plan

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Config is what a speaker is told when it starts.
type Config struct {
	Node string // the name of this node's Node object

	// DetectLocal says which traffic is from this node's own pods; see
	// proxy.LocalClients. With NodeCIDR, the Node's podCIDRs count as well:
	// right for most networks, wrong under Calico's and Cilium's own IPAM.
	DetectLocal proxy.LocalClients
	NodeCIDR    bool

	// SNAT is how sources are replaced.
	SNAT proxy.SNAT

	// Gateways are this node's default gateways, which may change.
	Gateways Gateways

	// Members are the nodes that have been heard of, which may change; nil: nobody
	// listens.
	Members *membership.Members

	// Interfaces are those of this node on which addresses may be answered for over L2,
	// which may change; nil: not known, and any address has one.
	Interfaces []l2.Interface

	// Returning says that this node is back so lately that others come before it over L2,
	// which may change.
	Returning bool

	// HealthChecks says of which Services the healthCheckNodePort is answered here.
	HealthChecks HealthChecks

	// Limits are those of this node's proxy; zero: those of nftables mode.
	Limits proxy.Limits
	// Refused are the addresses that this node's proxy has refused, which may change; nil:
	// none.
	Refused *Refused
}

// Gateways are the routers by which a node reaches what it knows no other way to, by
// address family: invalid where none is known.
type Gateways struct{ IPv4, IPv6 netip.Addr }

func (g Gateways) of(family corev1.IPFamily) netip.Addr {
	if family == corev1.IPv6Protocol {
		return g.IPv6
	}
	return g.IPv4
}

// HealthChecks is a choice of Services whose healthCheckNodePort is answered.
type HealthChecks uint8

const (
	// HealthChecksLabelled are those that kube-proxy leaves alone by their label
	// service.kubernetes.io/service-proxy-name: the others' ports are its own.
	HealthChecksLabelled HealthChecks = iota
	// HealthChecksAll are all, for a cluster without kube-proxy.
	HealthChecksAll
	// HealthChecksNone are none.
	HealthChecksNone
)
