package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// obstructionOf explains why new flows of external clients to a VIP certainly fail on this node,
// either all or those to some endpoints; empty if they may all succeed. Such an address is not
// announced (I1), even if other endpoints can be reached: the node attracts the flows to all of
// them.
func (v *View) obstructionOf(vip *proxy.VIP) string {
	if v.blockade == nil {
		return ""
	}
	for i := range vip.Frontends {
		for _, b := range vip.Frontends[i].External.Backends {
			if why := v.blockade.Why(vip.Addr, v.destination(b)); why != "" {
				return why
			}
		}
	}
	return ""
}

// destination returns where a flow to a backend goes. The kernel delivers flows to a pod in the
// network of this host without forwarding.
func (v *View) destination(b proxy.Backend) proxy.Destination {
	switch {
	case slices.Contains(v.NodeAddresses(), b.Addr.Addr()):
		return proxy.ToThisNode
	case b.Node == v.Node:
		return proxy.ToPods
	}
	return proxy.ToOtherNodes
}

// obstructsLike reports whether this View withholds the same addresses as another one.
func (v *View) obstructsLike(o *View) bool {
	return v.blockade == o.blockade && (v.blockade == nil || slices.Equal(v.NodeAddresses(), o.NodeAddresses()))
}

// withhold prevents this node from answering over Layer 2 for an address whose flows fail here.
// Another owner answers. If there is none, the cause may be that this node offers no interface.
func (o ownerDecision) withhold(v *View, addr netip.Addr, why string) ownerDecision {
	if why != "" && o.overL2 && (o.node == v.Node || o.code == cluster.NoCandidate && v.blockade.BlocksForwarding(addr)) {
		o.address, o.code, o.why = nil, cluster.Obstructed, why
	}
	return o
}

// Unobstructed reports whether this node can answer over Layer 2 for some address of a family
// despite a Blockade of all forwarded flows: all its endpoints are in the network of the host.
func (d *Desired) Unobstructed(b *proxy.Blockade, family func(netip.Addr) bool) bool {
	v := &View{Node: d.View.Node, Self: d.View.Self, blockade: b}
	hasBackends := func(f proxy.Frontend) bool { return len(f.External.Backends) > 0 }
	for a := range d.Addresses.All() {
		if family(a.Addr) && a.OverL2 && v.obstructionOf(a.VIP) == "" && slices.ContainsFunc(a.VIP.Frontends, hasBackends) {
			return true
		}
	}
	return false
}
