package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// obstruction is what the kernel of this node certainly drops.
type obstruction struct {
	blockade *obstacle.Blockade // nil: nothing
	node     string
	hosts    []netip.Addr // the addresses of this node
}

// of explains why new flows of external clients to a VIP certainly fail on this node,
// either all or those to some endpoints; empty if they may all succeed. Such an address is not
// announced (I1), even if other endpoints can be reached: the node attracts the flows to all of
// them.
func (o *obstruction) of(vip *proxy.VIP) string {
	if o.blockade == nil {
		return ""
	}
	for i := range vip.Frontends {
		for _, b := range vip.Frontends[i].External.Backends {
			if why := o.blockade.Why(vip.Addr, o.destination(b)); why != "" {
				return why
			}
		}
	}
	return ""
}

// destination returns where a flow to a backend goes. The kernel delivers flows to a pod in the
// network of this host without forwarding.
func (o *obstruction) destination(b proxy.Backend) obstacle.Destination {
	switch {
	case slices.Contains(o.hosts, b.Addr.Addr()):
		return obstacle.ToThisNode
	case b.Node == o.node:
		return obstacle.ToPods
	}
	return obstacle.ToOtherNodes
}

// like reports whether the same addresses are withheld.
func (o *obstruction) like(p *obstruction) bool {
	return o.blockade == p.blockade && (o.blockade == nil || slices.Equal(o.hosts, p.hosts))
}

// withhold prevents this node from answering over Layer 2 for an address whose flows fail here.
// Another owner answers. If there is none, the cause may be that this node offers no interface.
func (o ownerDecision) withhold(by *obstruction, addr netip.Addr, why string) ownerDecision {
	if why != "" && o.overL2 && (o.node == by.node ||
		o.code == cluster.NoCandidate && by.blockade.BlocksForwarding(addr)) {
		o.address, o.code, o.why = nil, cluster.Obstructed, why
	}
	return o
}

// Unobstructed reports whether this node can answer over Layer 2 for some address of a family
// despite a Blockade of all forwarded flows: all its endpoints are in the network of the host.
func (d *Desired) Unobstructed(b *obstacle.Blockade, family func(netip.Addr) bool) bool {
	all := &obstruction{b, d.Inputs.Node, addressesOf(d.Inputs.Self)}
	hasBackends := func(f proxy.Frontend) bool { return len(f.External.Backends) > 0 }
	for a := range d.Addresses.All() {
		if family(a.Addr) && a.OverL2 && all.of(a.VIP) == "" && slices.ContainsFunc(a.VIP.Frontends, hasBackends) {
			return true
		}
	}
	return false
}
