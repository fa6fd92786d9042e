package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
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
	// Duplicates are peers with the same router as an older peer on this node.
	Duplicates []cluster.Duplicate
	// RefusalMessage is why this node announces nothing over BGP, empty if it may.
	RefusalMessage string
	// Owned are the prefixes of all pools in which traffic to unused addresses is rejected.
	Owned []netip.Prefix

	asn             uint32
	routerID        netip.Addr
	sessions        []bgp.Session
	withoutPassword []string        // peers whose Secret is missing
	withoutGateway  []*cluster.Peer // peers whose router is an unknown default gateway
	gateways        Gateways        // from the Config
	allRecipients   [2]string       // routers that receive IPv4 and IPv6 routes, for a sentence
	next4, next6    netip.Addr      // next hops

	// unresponsive are the nodes whose endpoints are left out, and since when they do not respond.
	unresponsive map[string]time.Time

	foreignPrefixes []foreignPrefix    // no aggregate may contain these, seen from this node
	occupied        []cluster.Occupied // no aggregate may contain these, in the whole cluster
	allNodes        bool               // occupied includes all Nodes

	noAnnounce cluster.Code // why this node announces nothing, empty if it may
	planned    bool         // that is on purpose, and there is time to withdraw gracefully

	limits       proxy.Limits
	refused      *Refused // from the Config
	cuts         map[netip.Addr]*reduction
	blockade     *proxy.Blockade // from the Config
	clients      proxy.LocalClients
	onlyPodCIDRs bool       // the Node's podCIDRs alone say which clients are pods
	pods         PodNetwork // from the Config
	healthChecks HealthChecks

	fromPeers   []*cluster.Peer
	fromPools   []*cluster.Pool
	fromAdverts []*cluster.Advertisement   // whether or not they select this node
	fromL2      []*cluster.L2Advertisement // likewise

	usesL2           bool                 // addresses may be announced over Layer 2; else the rest is empty
	l2Ready          bool                 // the snapshot has all that Layer 2 depends on
	l2Advertisements *cluster.Snapshot    // only these and the pools, for package election
	candidates       *election.Candidates // nil until l2Ready
	electorate       []election.Node      // the nodes that these are of
	candidate        election.Node        // this node
	returning        bool                 // from the Config
	mostUnknown      bool                 // half of all kubelets or more: it may be the control plane's fault
	speakerMACs      []l2.MAC             // of other nodes
	nodeAddrs        []netip.Addr         // of other nodes
	l2Pools          []netip.Prefix       // of IPv4
}

// newView reads the Config and the snapshot. The order matters: the refusal depends on the
// sessions, and these on the gateways.
func newView(c Config, snap *cluster.Snapshot) *View {
	v := &View{Node: c.Node, Self: snap.Node(c.Node), fromPeers: snap.Peers, fromPools: snap.Pools, fromAdverts: snap.Advertisements, fromL2: snap.L2Advertisements, gateways: c.Gateways, Members: c.Members}
	v.unresponsive = c.Members.Unresponsive(c.Node)
	v.refused, v.blockade = c.Refused, c.Blockade
	if v.limits = c.Limits; v.limits == (proxy.Limits{}) {
		v.limits = proxy.DefaultLimits(proxy.ModeNFTables)
	}
	v.Owned = ownedPrefixes(snap.Pools)
	v.occupied, v.allNodes = snap.Occupied, snap.AllNodes
	v.clients, v.onlyPodCIDRs = localClients(c, v.Self)
	v.pods, v.healthChecks = c.Pods, c.HealthChecks
	if v.Self != nil {
		v.next4, v.next6 = first(v.Self.InternalIPs, netip.Addr.Is4), first(v.Self.InternalIPs, netip.Addr.Is6)
	}
	peers := v.resolveGateways(snap.Peers)
	v.readPeers(peers)
	v.readForeign(peers)
	v.noAnnounce, v.RefusalMessage = v.announceRefusal(len(snap.Peers))
	v.readL2(c, snap)
	if v.usesL2 {
		v.l2Pools = l2Pools(snap.Pools)
	}
	// A node that fails has no time to announce its shutdown; one that leaves has.
	v.planned = v.noAnnounce == cluster.NodeLeaving || v.noAnnounce == cluster.NodeExcluded
	return v
}

// isCurrent reports whether newView would return an equal View.
func (v *View) isCurrent(c Config, snap *cluster.Snapshot) bool {
	return v.Self == snap.Node(c.Node) && v.gateways == c.Gateways && v.Members == c.Members && v.refused == c.Refused && v.blockade == c.Blockade && v.pods == c.Pods && slices.Equal(v.fromPeers, snap.Peers) && slices.Equal(v.fromPools, snap.Pools) &&
		slices.Equal(v.fromAdverts, snap.Advertisements) && sortedset.Same(v.occupied, snap.Occupied) && v.allNodes == snap.AllNodes && v.isCurrentL2(c, snap)
}

// isCurrentL2 is isCurrent for Layer 2. Without Layer 2, other Nodes do not matter.
func (v *View) isCurrentL2(c Config, snap *cluster.Snapshot) bool {
	return slices.Equal(v.fromL2, snap.L2Advertisements) && v.usesL2 == snap.UsesL2() &&
		(!v.usesL2 || v.l2Ready == snap.L2Ready && slices.Equal(v.Nodes, snap.Nodes) && sortedset.Same(v.Interfaces, c.Interfaces) && (v.Interfaces == nil) == (c.Interfaces == nil) && v.returning == c.Returning)
}

// decidesLike reports whether this View decides about any address as another one would, if the
// origin of the address, its refusals, the unresponsive nodes and the candidates are the same.
func (v *View) decidesLike(o *View) bool {
	alike := func(a, b bgp.Session) bool { return a.Name == b.Name && a.Weights == b.Weights }
	return v.noAnnounce == o.noAnnounce && v.planned == o.planned && v.obstructsLike(o) && v.limits == o.limits && v.usesL2 == o.usesL2 &&
		(v.Self == nil) == (o.Self == nil) && (v.Self == nil || maps.Equal(v.Self.Labels, o.Self.Labels)) && slices.EqualFunc(v.sessions, o.sessions, alike) &&
		slices.Equal(v.fromAdverts, o.fromAdverts) && slices.Equal(v.fromL2, o.fromL2) &&
		(!slices.ContainsFunc(v.fromAdverts, (*cluster.Advertisement).Aggregates) || v.refusesLike(o))
}

// refusesLike reports whether this View refuses the same aggregates as another one.
func (v *View) refusesLike(o *View) bool {
	return v.allNodes == o.allNodes && sortedset.Same(v.occupied, o.occupied) && slices.Equal(v.foreignPrefixes, o.foreignPrefixes)
}

// keep makes what equals that of the last View the same slice, for callers that compare these.
func (v *View) keep(last *View) {
	v.sessions, v.Owned = sortedset.Keep(last.sessions, v.sessions), sortedset.Keep(last.Owned, v.Owned)
	v.speakerMACs, v.nodeAddrs = sortedset.Keep(last.speakerMACs, v.speakerMACs), sortedset.Keep(last.nodeAddrs, v.nodeAddrs)
	v.clients.CIDRs = sortedset.Keep(last.clients.CIDRs, v.clients.CIDRs)
	v.cuts = last.cuts
	// Candidates remember the L2Advertisements by name.
	if last.candidates != nil && slices.Equal(v.fromL2, last.fromL2) && reflect.DeepEqual(v.electorate, last.electorate) {
		v.candidates = last.candidates
	}
}

// Blockade returns the flows that certainly fail on this node, as the decision knows.
func (v *View) Blockade() *proxy.Blockade { return v.blockade }

// Problems returns what is wrong with objects on this node.
func (v *View) Problems() []cluster.Problem {
	return slices.Concat(v.gatewayProblems(), v.duplicateProblems(), v.interfaceProblems(), v.podNetworkProblems())
}

// interfaceProblems returns the L2Advertisements that select this node but none of its
// interfaces, once these are known.
func (v *View) interfaceProblems() (all []cluster.Problem) {
	for _, a := range v.fromL2 {
		if v.Interfaces == nil || v.blockade != nil || v.Self == nil || len(a.Interfaces) == 0 || !a.NodeSelector.Matches(v.Self.Labels) {
			continue
		}
		if !slices.ContainsFunc(v.Interfaces, func(i l2.Interface) bool { ok, _ := a.Allows(i.Name); return ok }) {
			all = append(all, cluster.Problem{Object: "L2Advertisement " + a.Name, Field: "spec.interfaces", Value: strings.Join(a.Interfaces, ", "), Code: cluster.NoInterface, Warning: true,
				Message: fmt.Sprintf("node %s has no such interface in a subnet of a pool; correct the names, or exclude the node by nodeSelector", v.Node)})
		}
	}
	return all
}

// ownedPrefixes returns the addresses of all pools, which may overlap, as prefixes. It leaves
// out those of nodes, pods and routers, to which packets are forwarded, and addresses that another
// implementation has given to a Service, which kube-proxy serves.
func ownedPrefixes(pools []*cluster.Pool) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range pools {
		for _, r := range p.Ranges {
			b.AddRange(r)
		}
		for _, o := range p.Occupied {
			b.RemoveRange(o.Range)
		}
	}
	return sortedset.BuildPrefixes(&b)
}

// l2Pools returns the IPv4 networks of pools that may be announced over Layer 2, without addresses
// that the cluster itself has.
func l2Pools(pools []*cluster.Pool) []netip.Prefix {
	some := slices.DeleteFunc(slices.Clone(pools), func(p *cluster.Pool) bool { return p.Announce == cluster.AnnounceBGP })
	return slices.DeleteFunc(ownedPrefixes(some), func(p netip.Prefix) bool { return p.Addr().Is6() })
}

func first(list []netip.Addr, is func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i]
	}
	return netip.Addr{}
}
