package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A View is what a node decides by, except Services: the node itself, its routers, the pools.
type View struct {
	Node       string
	Self       *cluster.Node       // nil without a Node object of that name
	Nodes      []*cluster.Node     // all nodes; only with Layer 2
	Members    *membership.Members // from the Config
	Interfaces []l2.Interface      // from the Config; only with Layer 2
	// RefusalMessage is why this node announces nothing over BGP, empty if it may.
	RefusalMessage string
	// Owned are the prefixes of all pools in which traffic to unused addresses is rejected.
	Owned []netip.Prefix

	topology    topology
	routers     *routers
	adverts     advertisements
	layer2      layer2
	obstruction obstruction
	capacity    capacity

	fromPeers []*cluster.Peer
	gateways  Gateways // from the Config

	noAnnounce cluster.Code // why this node announces nothing, empty if it may
	planned    bool         // that is on purpose, and there is time to withdraw gracefully

	clients      proxy.LocalClients
	onlyPodCIDRs bool       // the Node's podCIDRs alone say which clients are pods
	pods         PodNetwork // from the Config
	healthChecks HealthChecks
}

// newView reads the Config and the snapshot. The order matters: the refusal depends on the
// sessions, and these on the gateways.
func newView(c Config, snap *cluster.Snapshot) *View {
	self := snap.Node(c.Node)
	v := &View{
		Node: c.Node, Self: self, Members: c.Members, Owned: ownedPrefixes(snap.Pools),
		fromPeers: snap.Peers, gateways: c.Gateways, pods: c.Pods, healthChecks: c.HealthChecks,
		topology: topology{node: c.Node, unresponsive: c.Members.Unresponsive(c.Node)},
		capacity: capacity{limits: c.Limits, refused: c.Refused},
	}
	if c.Limits == (proxy.Limits{}) {
		v.capacity.limits = proxy.DefaultLimits(proxy.ModeNFTables)
	}
	if self != nil {
		v.topology.zone = self.Labels[corev1.LabelTopologyZone]
	}
	v.clients, v.onlyPodCIDRs = localClients(c, self)
	v.obstruction = obstruction{c.Blockade, c.Node, addressesOf(self)}
	peers := c.Gateways.resolve(snap.Peers)
	v.routers = newRouters(c.Node, self, peers)
	v.adverts = advertisements{
		self: self, routers: v.routers, reserved: newReserved(snap, self, v.clients.CIDRs, peers),
		pools: snap.Pools, bgp: snap.Advertisements, l2: snap.L2Advertisements,
	}
	v.noAnnounce, v.RefusalMessage = v.routers.refusal(self, len(snap.Peers))
	if v.layer2 = newLayer2(c, snap); v.layer2.used {
		v.Nodes, v.Interfaces = snap.Nodes, c.Interfaces
	}
	// A node that fails has no time to announce its shutdown; one that leaves has.
	v.planned = v.noAnnounce == cluster.NodeLeaving || v.noAnnounce == cluster.NodeExcluded
	return v
}

// isCurrent reports whether newView would return an equal View.
func (v *View) isCurrent(c Config, snap *cluster.Snapshot) bool {
	a, taken := &v.adverts, v.adverts.reserved
	return v.Self == snap.Node(c.Node) && v.gateways == c.Gateways && v.Members == c.Members && v.pods == c.Pods &&
		v.capacity.refused == c.Refused && v.obstruction.blockade == c.Blockade &&
		slices.Equal(v.fromPeers, snap.Peers) && slices.Equal(a.pools, snap.Pools) &&
		slices.Equal(a.bgp, snap.Advertisements) && sortedset.Same(taken.occupied, snap.Occupied) &&
		taken.allNodes == snap.AllNodes && v.isCurrentL2(c, snap)
}

// isCurrentL2 is isCurrent for Layer 2. Without Layer 2, other Nodes do not matter.
func (v *View) isCurrentL2(c Config, snap *cluster.Snapshot) bool {
	l := &v.layer2
	return slices.Equal(v.adverts.l2, snap.L2Advertisements) && l.used == snap.UsesL2() &&
		(!l.used || l.ready == snap.L2Ready && slices.Equal(v.Nodes, snap.Nodes) &&
			sortedset.Same(v.Interfaces, c.Interfaces) && (v.Interfaces == nil) == (c.Interfaces == nil) &&
			l.returning == c.Returning)
}

// decidesLike reports whether this View decides about any address as another one would, if the
// origin of the address, its refusals, the unresponsive nodes and the candidates are the same.
func (v *View) decidesLike(o *View) bool {
	alike := func(a, b bgp.Session) bool { return a.Name == b.Name && a.Weights == b.Weights }
	return v.noAnnounce == o.noAnnounce && v.planned == o.planned && v.obstruction.like(&o.obstruction) &&
		v.capacity.limits == o.capacity.limits && v.layer2.used == o.layer2.used &&
		(v.Self == nil) == (o.Self == nil) && (v.Self == nil || maps.Equal(v.Self.Labels, o.Self.Labels)) &&
		slices.EqualFunc(v.routers.sessions, o.routers.sessions, alike) &&
		slices.Equal(v.adverts.bgp, o.adverts.bgp) && slices.Equal(v.adverts.l2, o.adverts.l2) &&
		(!slices.ContainsFunc(v.adverts.bgp, (*cluster.Advertisement).Aggregates) ||
			v.adverts.reserved.like(o.adverts.reserved))
}

// keep makes what equals that of the last View the same slice, for callers that compare these.
func (v *View) keep(last *View) {
	v.routers.sessions = sortedset.Keep(last.routers.sessions, v.routers.sessions)
	v.Owned = sortedset.Keep(last.Owned, v.Owned)
	v.clients.CIDRs = sortedset.Keep(last.clients.CIDRs, v.clients.CIDRs)
	v.capacity.cuts = last.capacity.cuts
	l, was := &v.layer2, &last.layer2
	l.speakerMACs = sortedset.Keep(was.speakerMACs, l.speakerMACs)
	l.nodeAddrs = sortedset.Keep(was.nodeAddrs, l.nodeAddrs)
	// Candidates remember the L2Advertisements by name.
	if was.candidates != nil && slices.Equal(v.adverts.l2, last.adverts.l2) &&
		reflect.DeepEqual(l.electorate, was.electorate) {
		l.candidates = was.candidates
	}
}

// withoutCuts returns v, or a View that decides what addresses want.
func (v *View) withoutCuts() *View {
	if len(v.capacity.cuts) == 0 {
		return v
	}
	whole := *v
	whole.capacity.cuts = nil
	return &whole
}

// Blockade returns the flows that certainly fail on this node, as the decision knows.
func (v *View) Blockade() *proxy.Blockade { return v.obstruction.blockade }

// Duplicates returns the peers with the same router as an older peer on this node.
func (v *View) Duplicates() []cluster.Duplicate { return v.routers.duplicates }

// NodeAddresses returns the InternalIPs of this node.
func (v *View) NodeAddresses() []netip.Addr { return addressesOf(v.Self) }

// IsUnresponsive reports whether the endpoints of a node are left out.
func (v *View) IsUnresponsive(node string) bool { return v.topology.unresponsive.has(node) }

// WhyLeftOut explains why the endpoints of a node that died earlier are left out now.
func (v *View) WhyLeftOut(node string) string {
	if m, _ := v.Members.Find(node); m.Absent && v.Members.Halved(v.Node) {
		return "its Lease is not renewed either, while that of this node is"
	}
	return "more than half of the nodes respond again"
}

// Problems returns what is wrong with objects on this node.
func (v *View) Problems() []cluster.Problem {
	all := slices.Concat(v.routers.gatewayProblems(), v.adverts.duplicateProblems(), v.interfaceProblems())
	if v.onlyPodCIDRs {
		all = append(all, v.pods.Mismatch.problems(v.Self)...)
	}
	return all
}

// interfaceProblems returns the L2Advertisements that select this node but none of its
// interfaces, once these are known.
func (v *View) interfaceProblems() (all []cluster.Problem) {
	for _, a := range v.adverts.l2 {
		if v.Interfaces == nil || v.Blockade() != nil || v.Self == nil || len(a.Interfaces) == 0 ||
			!a.NodeSelector.Matches(v.Self.Labels) {
			continue
		}
		if !slices.ContainsFunc(v.Interfaces, func(i l2.Interface) bool { ok, _ := a.Allows(i.Name); return ok }) {
			all = append(all, cluster.Problem{Object: "L2Advertisement " + a.Name, Field: "spec.interfaces",
				Value: strings.Join(a.Interfaces, ", "), Code: cluster.NoInterface, Warning: true,
				Message: fmt.Sprintf("node %s has no such interface in a subnet of a pool; correct the names, or "+
					"exclude the node by nodeSelector", v.Node)})
		}
	}
	return all
}
