package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

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

// electOwner decides which node answers for an address.
func (v *View) electOwner(a *Address, shares []addressService) (o ownerDecision) {
	if !v.usesL2 {
		return o
	}
	// A Service with endpoints only on other nodes counts: the owner may be one of these.
	for _, s := range shares {
		if s.good() || s.code == cluster.NoLocalEndpoint {
			a.able = append(a.able, s.service)
		}
	}
	a.good = slices.ContainsFunc(shares, func(s addressService) bool { return s.good() || s.here })
	return v.elect(a)
}

// An electionChange is the difference between the candidates of two Views.
type electionChange struct {
	changed bool
	nodes   []string // that differ; nil: the elections have nothing in common
}

// electionChange compares the candidates with those of the last View.
func (v *View) electionChange(last *View) electionChange {
	c := electionChange{changed: v.candidates != last.candidates}
	if !c.changed || v.candidates == nil || last.candidates == nil {
		return c
	}
	c.nodes = []string{}
	nodes := make(map[string]election.Node, len(last.electorate))
	for _, n := range last.electorate {
		nodes[n.Name] = n
	}
	for _, n := range v.electorate {
		if before, was := nodes[n.Name]; !was || !reflect.DeepEqual(n, before) {
			c.nodes = append(c.nodes, n.Name)
		}
		delete(nodes, n.Name)
	}
	c.nodes = slices.AppendSeq(c.nodes, maps.Keys(nodes))
	return c
}

// electionConcerns reports whether the changed candidates may change the decision about an address.
func (v *View) electionConcerns(a *Address, c electionChange) bool {
	if !a.OverL2 {
		return false
	}
	// For a refused address it was not recorded why it would be announced.
	if a.Refusal != "" || c.nodes == nil || v.servedBy(a, c.nodes) {
		o := v.elect(a)
		return a.Refusal != "" || o.node != a.Owner || !equalOptionalL2(o.address, a.l2)
	}
	if len(a.able) == 0 {
		return false
	}
	eligibility, _, _ := v.eligibilityOf(a)
	candidacy := v.candidates.Address(a.Addr, eligibility, a.able, a.claim)
	return !v.candidates.Keeps(&candidacy, a.Owner, c.nodes)
}

// servedBy reports whether a Service with the policy Local has endpoints on one of these nodes, so
// that their change may affect which nodes count as able to serve it.
func (v *View) servedBy(a *Address, nodes []string) bool {
	return slices.ContainsFunc(a.able, func(s cluster.Service) bool {
		return s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal &&
			s.Endpoints.Any(func(e *cluster.Endpoint) bool { return slices.Contains(nodes, e.Node) })
	})
}

// elect decides by what the Address has recorded of its Services.
func (v *View) elect(a *Address) (o ownerDecision) {
	eligibility, overL2, why := v.eligibilityOf(a)
	switch o.overL2 = overL2; {
	case !overL2:
		o.code, o.why = cluster.NotAdvertised, why
		return o
	case len(a.able) == 0:
		return o // Each Service has its own Reason.
	case v.candidates == nil:
		o.code = cluster.WaitingForNodes
		return o
	}
	o.candidacy = v.candidates.Address(a.Addr, eligibility, a.able, a.claim)
	switch o.node = v.candidates.Owner(&o.candidacy); {
	case o.node == "":
		o.code = cluster.NoCandidate
	case o.node != v.Node:
		o.code = cluster.AnotherNode
	case !a.good:
		o.code = cluster.NoLocalEndpoint
	default:
		o.code, o.address = cluster.ToAnnounce, v.answer(a.Addr, eligibility)
	}
	return o
}

// eligibilityOf returns which nodes may answer for an address, or why it is not announced over
// Layer 2.
func (v *View) eligibilityOf(a *Address) (e election.Eligibility, overL2 bool, why string) {
	return election.EligibilityOf(v.l2Advertisements, a.origin, a.services)
}

// answer returns how this node answers for an address.
func (v *View) answer(addr netip.Addr, e election.Eligibility) *l2.Address {
	a := &l2.Address{Addr: addr}
	if len(e.By) > 0 {
		a.Interfaces = e.Interfaces(addr, &v.candidate)
		a.Yield = slices.ContainsFunc(e.By, func(a *cluster.L2Advertisement) bool { return a.Yield })
	}
	return a
}

// readL2 reads the input for Layer 2 from the snapshot: nothing in a cluster with only BGP.
func (v *View) readL2(c Config, snap *cluster.Snapshot) {
	v.usesL2 = snap.UsesL2()
	if !v.usesL2 {
		return
	}
	v.Nodes, v.Interfaces, v.returning, v.l2Ready = snap.Nodes, c.Interfaces, c.Returning, snap.L2Ready
	v.l2Advertisements = &cluster.Snapshot{L2Advertisements: snap.L2Advertisements, Pools: snap.Pools}
	v.speakerMACs = speakerMACs(c.Members, c.Node)
	if c.Members == nil {
		// Members report their hardware addresses, under the shared key or in their Leases. Beside that,
		// the neighbour table does not count: any host can claim a node's address first.
		v.nodeAddrs = otherNodeAddrs(snap.Nodes, c.Node)
	}
	if !snap.L2Ready {
		return
	}
	unknown := 0
	for _, n := range snap.Nodes {
		if n.ReadyUnknown {
			unknown++
		}
	}
	// Kubelets report to the API server. If it loses most of them at once, their nodes are most
	// likely alive, and moving all addresses would turn that into an outage.
	v.mostUnknown = 2*unknown >= len(snap.Nodes)
	nodes := make([]election.Node, len(snap.Nodes))
	for i, n := range snap.Nodes {
		nodes[i] = v.electionNode(c, n)
	}
	v.electorate, v.candidates = nodes, election.New(nodes)
	if i := slices.IndexFunc(nodes, func(n election.Node) bool { return n.Name == c.Node }); i >= 0 {
		v.candidate = nodes[i]
	}
}

// electionNode describes a node for the election. This node is alive. Other nodes are alive if
// their membership is; without members, unless their kubelet is unresponsive while most are not.
func (v *View) electionNode(c Config, n *cluster.Node) election.Node {
	out := election.Node{Name: n.Name, Labels: n.Labels}
	if n.Name == c.Node {
		out.Availability = election.AvailabilityOf(n, true)
		out.Unknown, out.Interfaces, out.Returning = c.Interfaces == nil, c.Interfaces, c.Returning
		return out
	}
	if c.Members == nil {
		out.Availability, out.Unknown = election.AvailabilityOf(n, !n.ReadyUnknown || v.mostUnknown), true
		return out
	}
	// A node that has never been a member has no speaker, and counts as dead.
	m, _ := c.Members.Find(n.Name)
	out.Availability, out.Returning = election.AvailabilityOf(n, m.Alive), m.Returning
	out.Interfaces = m.Interfaces
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

// equalOptionalL2 compares addresses that may be nil.
func equalOptionalL2(a, b *l2.Address) bool {
	return a == b || a != nil && b != nil && a.Equal(*b)
}
