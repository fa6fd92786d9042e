package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
)

// An ownerDecision is which node answers for an address over Layer 2.
type ownerDecision struct {
	// overL2: the address is announced over Layer 2. If not, why may say what is missing.
	overL2    bool
	node      string
	code      cluster.Code
	why       string
	candidacy election.Address // the input of the election
	address   *l2.Address      // on the owner; nil elsewhere
}

// layer2 is what elections are decided by: the candidates and the objects that select them.
type layer2 struct {
	used           bool // addresses may be announced over Layer 2; else the rest is empty
	ready          bool // the snapshot has all that Layer 2 depends on
	node           string
	advertisements *cluster.Snapshot    // only these and the pools, for package election
	candidates     *election.Candidates // nil until ready
	electorate     []election.Node      // the nodes that these are of
	candidate      election.Node        // this node
	returning      bool                 // from the Config
	speakerMACs    []l2.MAC             // of other nodes
	nodeAddrs      []netip.Addr         // of other nodes
	pools          []netip.Prefix       // of IPv4
}

// electOwner decides which node answers for an address.
func (l *layer2) electOwner(a *Address, shares []addressService) (o ownerDecision) {
	if !l.used {
		return o
	}
	// A Service with endpoints only on other nodes counts: the owner may be one of these.
	for _, s := range shares {
		if s.good() || s.code == cluster.NoLocalEndpoint {
			a.able = append(a.able, s.service)
		}
	}
	a.good = slices.ContainsFunc(shares, func(s addressService) bool { return s.good() || s.here })
	return l.elect(a)
}

// An electionChange is the difference between the candidates of two decisions.
type electionChange struct {
	changed bool
	nodes   []string // that differ; nil: the elections have nothing in common
}

// change compares the candidates with those of the last decision.
func (l *layer2) change(last *layer2) electionChange {
	c := electionChange{changed: l.candidates != last.candidates}
	if !c.changed || l.candidates == nil || last.candidates == nil {
		return c
	}
	c.nodes = []string{}
	byName := func(a, b election.Node) int { return strings.Compare(a.Name, b.Name) }
	alike := func(a, b election.Node) bool { return reflect.DeepEqual(a, b) }
	for was, is := range sortedset.Merge(last.electorate, l.electorate, byName, alike) {
		c.nodes = append(c.nodes, cmp.Or(is, was).Name)
	}
	return c
}

// concerns reports whether the changed candidates may change the decision about an address.
func (l *layer2) concerns(a *Address, c electionChange) bool {
	if !a.OverL2 {
		return false
	}
	// For a refused address it was not recorded why it would be announced.
	if a.Refusal != "" || c.nodes == nil || servedBy(a, c.nodes) {
		o := l.elect(a)
		return a.Refusal != "" || o.node != a.Owner || !reflect.DeepEqual(o.address, a.l2)
	}
	if len(a.able) == 0 {
		return false
	}
	eligibility, _, _ := l.eligibilityOf(a)
	candidacy := l.candidates.Address(a.Addr, eligibility, a.able, a.claim)
	return !l.candidates.Keeps(&candidacy, a.Owner, c.nodes)
}

// servedBy reports whether a Service with the policy Local has endpoints on one of these nodes, so
// that their change may affect which nodes count as able to serve it.
func servedBy(a *Address, nodes []string) bool {
	return slices.ContainsFunc(a.able, func(s cluster.Service) bool {
		return s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal &&
			s.Endpoints.Any(func(e *cluster.Endpoint) bool { return slices.Contains(nodes, e.Node) })
	})
}

// elect decides by what the Address has recorded of its Services.
func (l *layer2) elect(a *Address) (o ownerDecision) {
	eligibility, overL2, why := l.eligibilityOf(a)
	switch o.overL2 = overL2; {
	case !overL2:
		o.code, o.why = cluster.NotAdvertised, why
		return o
	case len(a.able) == 0:
		return o // Each Service has its own Reason.
	case l.candidates == nil:
		o.code = cluster.WaitingForNodes
		return o
	}
	o.candidacy = l.candidates.Address(a.Addr, eligibility, a.able, a.claim)
	switch o.node = l.candidates.Owner(&o.candidacy); {
	case o.node == "":
		o.code = cluster.NoCandidate
	case o.node != l.node:
		o.code = cluster.AnotherNode
	case !a.good:
		o.code = cluster.NoLocalEndpoint
	default:
		o.code, o.address = cluster.ToAnnounce, l.answer(a.Addr, eligibility)
	}
	return o
}

// eligibilityOf returns which nodes may answer for an address, or why it is not announced over
// Layer 2.
func (l *layer2) eligibilityOf(a *Address) (e election.Eligibility, overL2 bool, why string) {
	return election.EligibilityOf(l.advertisements, a.origin, a.services)
}

// answer returns how this node answers for an address.
func (l *layer2) answer(addr netip.Addr, e election.Eligibility) *l2.Address {
	a := &l2.Address{Addr: addr}
	if len(e.By) > 0 {
		a.Interfaces = e.Interfaces(addr, &l.candidate)
		a.Yield = slices.ContainsFunc(e.By, func(a *cluster.L2Advertisement) bool { return a.Yield })
	}
	return a
}

// ownerText explains an election.
func (l *layer2) ownerText(addr netip.Addr, o ownerDecision) string {
	switch o.code {
	case cluster.WaitingForNodes:
		return "the other nodes are not known yet"
	case cluster.NoCandidate:
		return l.candidates.None(&o.candidacy)
	case cluster.AnotherNode:
		return fmt.Sprintf("node %s answers for it (%s)", o.node, l.ownerBy(o))
	case cluster.NoLocalEndpoint:
		return "this node must answer for it, and has no endpoint yet"
	case cluster.ToAnnounce:
		return fmt.Sprintf(Wanted+"on %s (%s)", l.interfacesText(o.candidacy.Eligibility, addr), l.ownerBy(o))
	default:
		return o.why
	}
}

// ownerBy says what decided between the candidates.
func (l *layer2) ownerBy(o ownerDecision) string {
	if o.node == "" {
		return ""
	}
	_, by := l.candidates.Elect(&o.candidacy)
	return by
}

// interfacesText lists the interfaces of an address for a sentence. They are unknown in a plan
// for another node.
func (l *layer2) interfacesText(e election.Eligibility, addr netip.Addr) string {
	if names := e.Interfaces(addr, &l.candidate); len(names) > 0 {
		return strings.Join(names, ", ")
	}
	text := fmt.Sprintf("the interfaces with the subnet of %s", addr)
	for _, a := range e.By {
		if len(a.Interfaces) > 0 {
			text += fmt.Sprintf(", if L2Advertisement %s allows them (%s)", a.Name, strings.Join(a.Interfaces, ", "))
		}
	}
	return text
}

// newLayer2 reads the input for Layer 2 from the snapshot: nothing in a cluster with only BGP.
func newLayer2(c Config, snap *cluster.Snapshot) (l layer2) {
	l = layer2{used: snap.UsesL2(), node: c.Node}
	if !l.used {
		return l
	}
	l.returning, l.ready, l.pools = c.Returning, snap.L2Ready, l2Pools(snap.Pools)
	l.advertisements = &cluster.Snapshot{L2Advertisements: snap.L2Advertisements, Pools: snap.Pools}
	l.speakerMACs = speakerMACs(c.Members, c.Node)
	if c.Members == nil {
		// Members report their hardware addresses, under the shared key or in their Leases. Beside that,
		// the neighbour table does not count: any host can claim a node's address first.
		l.nodeAddrs = otherNodeAddrs(snap.Nodes, c.Node)
	}
	if !snap.L2Ready {
		return l
	}
	unknown := 0
	for _, n := range snap.Nodes {
		if n.ReadyUnknown {
			unknown++
		}
	}
	// Kubelets report to the API server. If it loses most of them at once, their nodes are most
	// likely alive, and moving all addresses would turn that into an outage.
	mostUnknown := 2*unknown >= len(snap.Nodes)
	nodes := make([]election.Node, len(snap.Nodes))
	for i, n := range snap.Nodes {
		nodes[i] = electionNode(c, n, mostUnknown)
	}
	l.electorate, l.candidates = nodes, election.New(nodes)
	if i := slices.IndexFunc(nodes, func(n election.Node) bool { return n.Name == c.Node }); i >= 0 {
		l.candidate = nodes[i]
	}
	return l
}

// electionNode describes a node for the election. This node is alive. Other nodes are alive if
// their membership is; without members, unless their kubelet is unresponsive while most are not.
func electionNode(c Config, n *cluster.Node, mostUnknown bool) election.Node {
	out := election.Node{Name: n.Name, Labels: n.Labels}
	alive := true
	switch m, _ := c.Members.Find(n.Name); {
	case n.Name == c.Node:
		out.Unknown, out.Interfaces, out.Returning = c.Interfaces == nil, c.Interfaces, c.Returning
	case c.Members == nil:
		alive, out.Unknown = !n.ReadyUnknown || mostUnknown, true
	default: // A node that has never been a member has no speaker, and counts as dead.
		alive, out.Interfaces, out.Returning = m.Alive, m.Interfaces, m.Returning
	}
	out.Availability = election.AvailabilityOf(n, alive)
	return out
}

// speakerMACs returns the MAC addresses of other speakers, sorted: an ARP or NDP packet about an
// address is no conflict if one of them sent it.
func speakerMACs(m *membership.Members, self string) (all []l2.MAC) {
	if m == nil {
		return nil
	}
	for _, n := range m.Nodes {
		if n.Node == self {
			continue
		}
		for _, i := range n.Interfaces {
			if i.MAC != (l2.MAC{}) {
				all = append(all, i.MAC)
			}
		}
	}
	slices.SortFunc(all, func(a, b l2.MAC) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(all)
}

// otherNodeAddrs returns the addresses of all nodes except self.
func otherNodeAddrs(nodes []*cluster.Node, self string) (all []netip.Addr) {
	for _, n := range nodes {
		if n.Name != self {
			all = append(all, n.InternalIPs...)
		}
	}
	return all
}
