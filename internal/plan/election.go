package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
)

// An ownerDecision is which node answers for an address over Layer 2, and why.
type ownerDecision struct {
	// overL2: the address is announced over Layer 2. If not, why may say what is missing.
	overL2  bool
	node    string
	by      string // what decided between the candidates
	code    cluster.Code
	why     string
	address *l2.Address // on the owner; nil elsewhere
}

// electOwner decides which node answers for an address.
func (v *View) electOwner(a *Address, shares []share) (o ownerDecision) {
	if !v.usesL2 {
		return o
	}
	// A Service with endpoints only on other nodes counts: the owner may be one of these.
	var able []cluster.Service
	for _, s := range shares {
		if s.good() || s.code == cluster.NoLocalEndpoint {
			able = append(able, s.service)
		}
	}
	eligibility, overL2, why := election.EligibilityOf(v.l2Advertisements, a.origin, a.services)
	switch o.overL2 = overL2; {
	case !overL2:
		o.code, o.why = cluster.NotAdvertised, why
		return o
	case len(able) == 0:
		return o // Each Service has its own Reason.
	case v.candidates == nil:
		o.code, o.why = cluster.WaitingForNodes, "the other nodes are not known yet"
		return o
	}
	from := v.candidates.Address(a.Addr, eligibility, able, a.claim)
	switch o.node, o.by = v.candidates.Elect(&from); {
	case o.node == "":
		o.code, o.why = cluster.NoCandidate, v.candidates.None(&from)
	case o.node != v.Node:
		o.code, o.why = cluster.AnotherNode, fmt.Sprintf("node %s answers for it (%s)", o.node, o.by)
	case !slices.ContainsFunc(shares, share.good):
		o.code, o.why = cluster.NoLocalEndpoint, "this node must answer for it, and has no endpoint yet"
	default:
		o.address = &l2.Address{Addr: a.Addr}
		if len(eligibility.By) > 0 {
			o.address.Interfaces = eligibility.Interfaces(a.Addr, &v.candidate)
			o.address.Yield = slices.ContainsFunc(eligibility.By, func(a *cluster.L2Advertisement) bool { return a.Yield })
		}
		o.code, o.why = cluster.Announced, fmt.Sprintf("announced on %s (%s)", v.interfacesText(eligibility, a.Addr), o.by)
	}
	return o
}

// interfacesText lists the interfaces of an address for a sentence. They are unknown in a plan
// for another node.
func (v *View) interfacesText(e election.Eligibility, addr netip.Addr) string {
	if names := e.Interfaces(addr, &v.candidate); len(names) > 0 {
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

// isL2Only reports whether an address is not for BGP: its pool has announce L2, or Advertised
// and only L2Advertisements select it.
func (v *View) isL2Only(from cluster.Origin) bool {
	if from.Announce != cluster.AnnounceAdvertised {
		return from.Announce == cluster.AnnounceL2
	}
	return !slices.ContainsFunc(v.fromAdverts, func(a *cluster.Advertisement) bool { return a.SelectsPool(from.Pool) }) &&
		slices.ContainsFunc(v.fromL2, func(a *cluster.L2Advertisement) bool { return a.SelectsPool(from.Pool) })
}

// readL2 takes what decides about Layer 2 from the snapshot: nothing in a cluster with only BGP.
func (v *View) readL2(c Config, snap *cluster.Snapshot) {
	v.usesL2 = snap.UsesL2()
	if !v.usesL2 {
		return
	}
	v.Nodes, v.Interfaces, v.returning, v.l2Ready = snap.Nodes, c.Interfaces, c.Returning, snap.L2Ready
	v.l2Advertisements = &cluster.Snapshot{L2Advertisements: snap.L2Advertisements, Pools: snap.Pools}
	v.speakerMACs, v.nodeAddrs = speakerMACs(c.Members, c.Node), otherNodeAddrs(snap.Nodes, c.Node)
	if !snap.L2Ready {
		return
	}
	silent := 0
	for _, n := range snap.Nodes {
		if n.Silent {
			silent++
		}
	}
	// Kubelets report to the API server. If it loses most of them at once, their nodes are most
	// likely alive, and moving all addresses would make an outage of it.
	v.mostSilent = 2*silent >= len(snap.Nodes)
	nodes := make([]election.Node, len(snap.Nodes))
	for i, n := range snap.Nodes {
		nodes[i] = v.electionNode(c, n)
	}
	v.candidates = election.New(nodes)
	if i := slices.IndexFunc(nodes, func(n election.Node) bool { return n.Name == c.Node }); i >= 0 {
		v.candidate = nodes[i]
	}
}

// electionNode describes a node for the election. This node is alive. Other nodes are alive if
// their membership is; without members, unless their kubelet is silent while most are not.
func (v *View) electionNode(c Config, n *cluster.Node) election.Node {
	out := election.Node{Name: n.Name, Labels: n.Labels}
	if n.Name == c.Node {
		out.Standing = election.StandingOf(n, true)
		out.Unknown, out.Interfaces, out.Returning = c.Interfaces == nil, interfacesOf(c.Interfaces), c.Returning
		return out
	}
	if c.Members == nil {
		out.Standing, out.Unknown = election.StandingOf(n, !n.Silent || v.mostSilent), true
		return out
	}
	// A node that has never been a member has no speaker, and counts as dead.
	m, _ := c.Members.Find(n.Name)
	out.Standing, out.Returning = election.StandingOf(n, m.Alive), m.Returning
	out.Interfaces = m.Interfaces
	return out
}

// interfacesOf keeps of this node's interfaces what an election compares.
func interfacesOf(list []l2.Interface) (out []cluster.Interface) {
	for _, i := range list {
		out = append(out, cluster.Interface{Name: i.Name, Prefixes: i.Prefixes})
	}
	return out
}

// speakerMACs returns the MAC addresses of other speakers, sorted: with one of these as its
// sender, an ARP or NDP packet about an address is no conflict.
func speakerMACs(m *membership.Members, self string) (all []l2.MAC) {
	if m == nil {
		return nil
	}
	for _, n := range m.Nodes {
		if n.Node == self {
			continue
		}
		for _, i := range n.Interfaces {
			if len(i.MAC) == len(l2.MAC{}) {
				all = append(all, l2.MAC(i.MAC))
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
