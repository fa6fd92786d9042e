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
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// Inputs are what a node decides by, except Services: the node itself, its routers, the pools.
type Inputs struct {
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

// newInputs reads the Config and the snapshot. The order matters: the refusal depends on the
// sessions, and these on the gateways.
func newInputs(c Config, snap *cluster.Snapshot) *Inputs {
	self := snap.Node(c.Node)
	v := &Inputs{
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

// isCurrent reports whether newInputs would return equal Inputs.
func (in *Inputs) isCurrent(c Config, snap *cluster.Snapshot) bool {
	a, taken := &in.adverts, in.adverts.reserved
	return in.Self == snap.Node(c.Node) && in.gateways == c.Gateways && in.Members == c.Members && in.pods == c.Pods &&
		in.capacity.refused == c.Refused && in.obstruction.blockade == c.Blockade &&
		slices.Equal(in.fromPeers, snap.Peers) && slices.Equal(a.pools, snap.Pools) &&
		slices.Equal(a.bgp, snap.Advertisements) && sortedset.Same(taken.occupied, snap.Occupied) &&
		taken.allNodes == snap.AllNodes && in.isCurrentL2(c, snap)
}

// isCurrentL2 is isCurrent for Layer 2. Without Layer 2, other Nodes do not matter.
func (in *Inputs) isCurrentL2(c Config, snap *cluster.Snapshot) bool {
	l := &in.layer2
	return slices.Equal(in.adverts.l2, snap.L2Advertisements) && l.used == snap.UsesL2() &&
		(!l.used || l.ready == snap.L2Ready && slices.Equal(in.Nodes, snap.Nodes) &&
			sortedset.Same(in.Interfaces, c.Interfaces) && (in.Interfaces == nil) == (c.Interfaces == nil) &&
			l.returning == c.Returning)
}

// decidesLike reports whether these Inputs decide about any address as others would, if the
// origin of the address, its refusals, the unresponsive nodes and the candidates are the same.
func (in *Inputs) decidesLike(o *Inputs) bool {
	alike := func(a, b bgp.Session) bool { return a.Name == b.Name && a.Weights == b.Weights }
	return in.noAnnounce == o.noAnnounce && in.planned == o.planned && in.obstruction.like(&o.obstruction) &&
		in.capacity.limits == o.capacity.limits && in.layer2.used == o.layer2.used &&
		(in.Self == nil) == (o.Self == nil) && (in.Self == nil || maps.Equal(in.Self.Labels, o.Self.Labels)) &&
		slices.EqualFunc(in.routers.sessions, o.routers.sessions, alike) &&
		slices.Equal(in.adverts.bgp, o.adverts.bgp) && slices.Equal(in.adverts.l2, o.adverts.l2) &&
		(!slices.ContainsFunc(in.adverts.bgp, (*cluster.Advertisement).Aggregates) ||
			in.adverts.reserved.like(o.adverts.reserved))
}

// keep makes what equals that of the last Inputs the same slice, for callers that compare these.
func (in *Inputs) keep(last *Inputs) {
	in.routers.sessions = sortedset.Keep(last.routers.sessions, in.routers.sessions)
	in.Owned = sortedset.Keep(last.Owned, in.Owned)
	in.clients.CIDRs = sortedset.Keep(last.clients.CIDRs, in.clients.CIDRs)
	in.capacity.cuts = last.capacity.cuts
	l, was := &in.layer2, &last.layer2
	l.speakerMACs = sortedset.Keep(was.speakerMACs, l.speakerMACs)
	l.nodeAddrs = sortedset.Keep(was.nodeAddrs, l.nodeAddrs)
	// Candidates remember the L2Advertisements by name.
	if was.candidates != nil && slices.Equal(in.adverts.l2, last.adverts.l2) &&
		reflect.DeepEqual(l.electorate, was.electorate) {
		l.candidates = was.candidates
	}
}

// withoutCuts returns v, or Inputs that decide what addresses want.
func (in *Inputs) withoutCuts() *Inputs {
	if len(in.capacity.cuts) == 0 {
		return in
	}
	whole := *in
	whole.capacity.cuts = nil
	return &whole
}

// Blockade returns the flows that certainly fail on this node, as the decision knows.
func (in *Inputs) Blockade() *obstacle.Blockade { return in.obstruction.blockade }

// Duplicates returns the peers with the same router as an older peer on this node.
func (in *Inputs) Duplicates() []cluster.Duplicate { return in.routers.duplicates }

// NodeAddresses returns the InternalIPs of this node.
func (in *Inputs) NodeAddresses() []netip.Addr { return addressesOf(in.Self) }

// IsUnresponsive reports whether the endpoints of a node are left out.
func (in *Inputs) IsUnresponsive(node string) bool { return in.topology.unresponsive.has(node) }

// WhyLeftOut explains why the endpoints of a node that died earlier are left out now.
func (in *Inputs) WhyLeftOut(node string) string {
	if m, _ := in.Members.Find(node); m.Absent && in.Members.Halved(in.Node) {
		return "its Lease is not renewed either, while that of this node is"
	}
	return "more than half of the nodes respond again"
}

// Problems returns what is wrong with objects on this node.
func (in *Inputs) Problems() []cluster.Problem {
	all := slices.Concat(in.routers.gatewayProblems(), in.adverts.duplicateProblems(), in.interfaceProblems())
	if in.onlyPodCIDRs {
		all = append(all, in.pods.Mismatch.problems(in.Self)...)
	}
	return all
}

// interfaceProblems returns the L2Advertisements that select this node but none of its
// interfaces, once these are known.
func (in *Inputs) interfaceProblems() (all []cluster.Problem) {
	for _, a := range in.adverts.l2 {
		if in.Interfaces == nil || in.Blockade() != nil || in.Self == nil || len(a.Interfaces) == 0 ||
			!a.NodeSelector.Matches(in.Self.Labels) {
			continue
		}
		if !slices.ContainsFunc(in.Interfaces, func(i l2.Interface) bool { ok, _ := a.Allows(i.Name); return ok }) {
			all = append(all, cluster.Problem{Object: cluster.Named("L2Advertisement", a.Name),
				Field: "spec.interfaces",
				Value: strings.Join(a.Interfaces, ", "), Code: cluster.NoInterface, Warning: true,
				Message: fmt.Sprintf("node %s has no such interface in a subnet of a pool; correct the names, or "+
					"exclude the node by nodeSelector", in.Node)})
		}
	}
	return all
}
