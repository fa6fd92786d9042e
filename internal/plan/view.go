package plan

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A View is what a node decides by, apart from the Services: itself, the
// routers and the pools.
type View struct {
	Node       string
	Self       *cluster.Node       // nil when there is no Node object of that name
	Nodes      []*cluster.Node     // all, where addresses may go over L2
	Members    *membership.Members // as the config has them
	Interfaces []l2.Interface      // as the config has them, where addresses may go over L2
	// Duplicates are peers whose router an older one has here.
	Duplicates []cluster.Duplicate
	// RefusalMessage says why this node announces nothing over BGP, empty when it may.
	RefusalMessage string
	// Owned are the prefixes of all pools in which traffic to unused addresses is rejected.
	Owned []netip.Prefix

	asn      uint32
	routerID netip.Addr
	sessions []bgp.Session
	unsigned []string        // peers that wait for their password
	lost     []*cluster.Peer // whose router is a default gateway that is not known
	gateways Gateways        // what the config said
	told     [2]string       // names of the routers that are told IPv4 and IPv6 addresses, for a sentence

	// silent are the nodes whose endpoints are left out, and since when nothing has been
	// heard of them.
	silent map[string]time.Time

	others   []other            // networks that no aggregate may contain, seen from this node
	occupied []cluster.Occupied // what no aggregate may contain, of all that is known of the cluster
	allNodes bool               // that includes all Nodes

	next4, next6 netip.Addr

	// refusal is why this node announces nothing, empty when it may.
	refusal cluster.Code
	// planned: somebody wants it so, and there is time to say it to routers before.
	planned bool

	limits       proxy.Limits
	refused      *Refused // what the config said
	clients      proxy.LocalClients
	healthChecks HealthChecks

	fromPeers []*cluster.Peer
	fromPools []*cluster.Pool
	// fromAdverts and fromL2 are the cluster's, also those that do not select this node.
	fromAdverts []*cluster.Advertisement
	fromL2      []*cluster.L2Advertisement

	// links says that addresses may go over L2; the rest is there only then.
	links      bool
	ready      bool                 // all is known that decides about L2
	terms      *cluster.Snapshot    // what of the cluster says which addresses go over L2
	electorate *election.Candidates // nil until ready
	elector    election.Node        // this node
	returning  bool                 // it is, by the config
	cutOff     bool                 // half of all kubelets are silent, or more: it may be the control plane that is
	speakers   []l2.MAC             // of other nodes
	neighbours []netip.Addr         // the other nodes' own
}

// of says whether the view is what look would return.
func (v *View) of(c Config, snap *cluster.Snapshot) bool {
	return v.Self == snap.Node(c.Node) && v.gateways == c.Gateways && v.Members == c.Members && v.refused == c.Refused && slices.Equal(v.fromPeers, snap.Peers) && slices.Equal(v.fromPools, snap.Pools) &&
		slices.Equal(v.fromAdverts, snap.Advertisements) && sortedset.Same(v.occupied, snap.Occupied) && v.allNodes == snap.AllNodes && v.ofLinks(c, snap)
}

// NodeAddresses are this node's, as its Node object has them.
func (v *View) NodeAddresses() []netip.Addr {
	if v.Self == nil {
		return nil
	}
	return v.Self.InternalIPs
}

// ofLinks is of for what L2 depends on.
func (v *View) ofLinks(c Config, snap *cluster.Snapshot) bool {
	return slices.Equal(v.fromL2, snap.L2Advertisements) && v.links == snap.UsesL2() &&
		(!v.links || v.ready == snap.L2Ready && slices.Equal(v.Nodes, snap.Nodes) && sortedset.Same(v.Interfaces, c.Interfaces) && v.returning == c.Returning)
}

func look(c Config, snap *cluster.Snapshot) *View {
	v := &View{Node: c.Node, Self: snap.Node(c.Node), fromPeers: snap.Peers, fromPools: snap.Pools, fromAdverts: snap.Advertisements, fromL2: snap.L2Advertisements, gateways: c.Gateways, Members: c.Members}
	v.silent = c.Members.Silent(c.Node)
	v.refused = c.Refused
	if v.limits = c.Limits; v.limits == (proxy.Limits{}) {
		v.limits = proxy.DefaultLimits(proxy.ModeNFTables)
	}
	v.Owned = owned(snap.Pools)
	v.occupied, v.allNodes = snap.Occupied, snap.AllNodes
	v.clients, v.healthChecks = c.DetectLocal, c.HealthChecks
	if v.Self != nil {
		v.next4, v.next6 = first(v.Self.InternalIPs, netip.Addr.Is4), first(v.Self.InternalIPs, netip.Addr.Is6)
		if c.NodeCIDR {
			v.clients.CIDRs = sortedset.MergePrefixes(append(slices.Clone(v.clients.CIDRs), v.Self.PodCIDRs...))
		}
	}
	peers := v.resolve(snap.Peers)
	v.lookAtPeers(peers)
	v.lookAtOthers(peers)
	v.refusal, v.RefusalMessage = v.refuse(len(snap.Peers))
	v.lookAtLinks(c, snap)
	v.planned = v.refusal == cluster.NodeLeaving || v.refusal == cluster.NodeExcluded
	return v
}

// lookAtPeers takes over the peers that select this node, without duplicates. The first of
// them, by name, gives the node's own AS number.
func (v *View) lookAtPeers(peers []*cluster.Peer) {
	v.Duplicates = cluster.Duplicates(peers, v.Self)
	for _, p := range peers {
		if v.Self == nil || !p.NodeSelector.Matches(v.Self.Labels) || v.duplicate(p.Name) != nil {
			continue
		}
		if v.asn == 0 {
			v.asn = p.MyASN
		}
		if p.DefaultGateway != "" && !p.PeerAddress.IsValid() {
			v.lost = append(v.lost, p)
			continue
		}
		if p.Secret != "" && p.Password == "" {
			v.unsigned = append(v.unsigned, p.Name)
			continue
		}
		v.sessions = append(v.sessions, p.Session)
	}
	v.told = [2]string{v.tell(true, ""), v.tell(false, "")}
	v.routerID = routerID(v.Node, v.next4)
}

// resolve puts the address of the default gateway in where that is the router.
func (v *View) resolve(peers []*cluster.Peer) []*cluster.Peer {
	resolved := slices.Clone(peers)
	for i, p := range peers {
		if p.DefaultGateway != "" {
			with := *p
			with.PeerAddress = v.gateways.of(p.DefaultGateway)
			resolved[i] = &with
		}
	}
	return resolved
}

// duplicate says whose duplicate a peer is here; nil if it is none.
func (v *View) duplicate(peer string) *cluster.Duplicate {
	i := slices.IndexFunc(v.Duplicates, func(d cluster.Duplicate) bool { return d.Peer.Name == peer })
	if i < 0 {
		return nil
	}
	return &v.Duplicates[i]
}

// duplicateProblems are those of peers without a session, and of advertisements that name only
// such peers.
func (v *View) duplicateProblems() (all []cluster.Problem) {
	for _, d := range v.Duplicates {
		all = append(all, d.Problem(v.Node))
	}
	for _, a := range v.fromAdverts {
		if v.Self == nil || !a.NodeSelector.Matches(v.Self.Labels) || v.reaches(a) {
			continue
		}
		if d, ok := a.NamesOnly(v.Duplicates); ok {
			all = append(all, d.Unheard(a, v.Node))
		}
	}
	return all
}

// Problems are those that an object has on this node.
func (v *View) Problems() (all []cluster.Problem) {
	for _, p := range v.lost {
		all = append(all, cluster.Problem{Object: "BGPPeer " + p.Name, Field: "spec.defaultGateway", Value: string(p.DefaultGateway),
			Message: fmt.Sprintf("node %s is not known to have such a gateway; give it a default route, or name the router by peerAddress", v.Node)})
	}
	return slices.Concat(all, v.duplicateProblems(), v.interfaceProblems())
}

// interfaceProblems are the L2Advertisements that select this node and name no interface
// that it has. Nothing is known before the interfaces are.
func (v *View) interfaceProblems() (all []cluster.Problem) {
	for _, a := range v.fromL2 {
		if v.Interfaces == nil || v.Self == nil || len(a.Interfaces) == 0 || !a.NodeSelector.Matches(v.Self.Labels) {
			continue
		}
		if !slices.ContainsFunc(v.Interfaces, func(i l2.Interface) bool { ok, _ := a.Allows(i.Name); return ok }) {
			all = append(all, cluster.Problem{Object: "L2Advertisement " + a.Name, Field: "spec.interfaces", Value: strings.Join(a.Interfaces, ", "), Code: cluster.NoInterface, Warning: true,
				Message: fmt.Sprintf("node %s has no such interface in a subnet of a pool; correct the names, or exclude the node by nodeSelector", v.Node)})
		}
	}
	return all
}

// routerID is the node's IPv4 address. On a node without one it is made from
// the name: it need only be unique in the AS and not zero (RFC 6286 §2.1).
func routerID(name string, addr netip.Addr) netip.Addr {
	if addr.IsValid() {
		return addr
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	n := h.Sum32() | 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// refuse says why this node announces nothing.
func (v *View) refuse(peers int) (cluster.Code, string) {
	switch n := v.Self; {
	case n == nil:
		return cluster.NodeUnavailable, fmt.Sprintf("there is no Node object named %q; is --node-name right?", v.Node)
	case n.Leaving != "":
		return cluster.NodeLeaving, fmt.Sprintf("taint %s says that node %s is going away", n.Leaving, n.Name)
	case n.Excluded:
		return cluster.NodeExcluded, fmt.Sprintf("node %s has the label node.kubernetes.io/exclude-from-external-load-balancers", n.Name)
	case n.NetworkUnavailable:
		return cluster.NodeUnavailable, fmt.Sprintf("node %s has the condition NetworkUnavailable", n.Name)
	case n.NotReady:
		return cluster.NodeUnavailable, fmt.Sprintf("node %s is not Ready", n.Name)
	case peers == 0:
		return cluster.NoPeer, "there is no BGPPeer; add one that names your router"
	case len(v.sessions) == 0 && len(v.lost) > 0:
		return cluster.NoPeer, "there is no router yet: " + v.Problems()[0].String()
	case len(v.sessions) == 0 && len(v.unsigned) > 0:
		return cluster.NoPeer, fmt.Sprintf("BGPPeer %s waits for the Secret with its password", cluster.Enumerate(v.unsigned))
	case len(v.sessions) == 0:
		return cluster.NoPeer, fmt.Sprintf("none of the %d BGPPeers has a nodeSelector that matches node %s (labels %s)", peers, n.Name, labels.FormatLabels(n.Labels))
	default:
		return "", ""
	}
}

// tell names the routers of peers that are told addresses of a family. One that is
// reached over IPv4 is told IPv6 addresses if this node has one to name as the next
// hop; one over IPv6 may take its IPv6 address for IPv4 as well (RFC 8950).
func (v *View) tell(is4 bool, peers bgp.Peers) string {
	var told, all []string
	for _, s := range v.sessions {
		if !peers.Has(s.Name) {
			continue
		}
		all = append(all, s.Name)
		if is4 || !s.PeerAddress.Is4() || v.next6.IsValid() {
			told = append(told, s.Name)
		}
	}
	if len(told) > 0 {
		return cluster.Enumerate(told)
	}
	return cluster.Enumerate(all)
}

// toldOf names the routers that are told r.
func (v *View) toldOf(r bgp.Route) string {
	is4 := r.Prefix.Addr().Is4()
	switch {
	case r.Peers != "":
		return v.tell(is4, r.Peers)
	case is4:
		return v.told[0]
	default:
		return v.told[1]
	}
}

// owned are the addresses of all pools as prefixes, without those that nodes, pods or
// routers have: to them packets go on.
func owned(pools []*cluster.Pool) []netip.Prefix {
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

func first(list []netip.Addr, is func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i]
	}
	return netip.Addr{}
}
