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

// lookAtLinks takes over what decides about L2. In a cluster that only speaks BGP that is
// nothing, and other nodes are none of our business.
func (v *View) lookAtLinks(c Config, snap *cluster.Snapshot) {
	v.links = snap.UsesL2()
	if !v.links {
		return
	}
	v.Nodes, v.Interfaces, v.returning, v.ready = snap.Nodes, c.Interfaces, c.Returning, snap.L2Ready
	v.terms = &cluster.Snapshot{L2Advertisements: snap.L2Advertisements}
	v.speakers, v.neighbours = speakersOf(c.Members, c.Node), nodesBut(snap.Nodes, c.Node)
	if !snap.L2Ready {
		return
	}
	silent := 0
	for _, n := range snap.Nodes {
		if n.Silent {
			silent++
		}
	}
	v.cutOff = 2*silent >= len(snap.Nodes)
	nodes := make([]election.Node, len(snap.Nodes))
	for i, n := range snap.Nodes {
		nodes[i] = v.candidate(c, n)
	}
	v.electorate = election.New(nodes)
	if i := slices.IndexFunc(nodes, func(n election.Node) bool { return n.Name == c.Node }); i >= 0 {
		v.elector = nodes[i]
	}
}

// candidate is what this node knows of one that may answer. It is itself alive; of others
// that is known only of those that are members, and without members of all but those
// whose kubelets are silent while most are not.
func (v *View) candidate(c Config, n *cluster.Node) election.Node {
	out := election.Node{Name: n.Name, Labels: n.Labels}
	if n.Name == c.Node {
		out.Standing = election.StandingOf(n, true)
		out.Unknown, out.Interfaces, out.Returning = c.Interfaces == nil, interfacesOf(c.Interfaces), c.Returning
		return out
	}
	if c.Members == nil {
		out.Standing, out.Unknown = election.StandingOf(n, !n.Silent || v.cutOff), true
		return out
	}
	m, _ := c.Members.Find(n.Name)
	out.Standing, out.Returning = election.StandingOf(n, m.Alive), m.Returning
	for _, i := range m.Interfaces {
		out.Interfaces = append(out.Interfaces, cluster.Interface{Name: i.Name, Prefixes: i.Prefixes})
	}
	return out
}

func interfacesOf(list []l2.Interface) (out []cluster.Interface) {
	for _, i := range list {
		out = append(out, cluster.Interface{Name: i.Name, Prefixes: i.Prefixes})
	}
	return out
}

// speakersOf are the hardware addresses of other speakers, sorted.
func speakersOf(m *membership.Members, self string) (all []l2.MAC) {
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

// nodesBut are the addresses of all nodes but one.
func nodesBut(nodes []*cluster.Node, self string) (all []netip.Addr) {
	for _, n := range nodes {
		if n.Name != self {
			all = append(all, n.InternalIPs...)
		}
	}
	return all
}

// A seat is who answers for an address over L2, and why.
type seat struct {
	// linked says that the address goes over L2 at all; else why says why not, as far as
	// somebody may have expected it.
	linked bool
	owner  string
	by     string // what decided between the candidates
	code   cluster.Code
	why    string
	// answer is set on the node that answers.
	answer *l2.Address
}

// elect decides who answers for an address that services hold, of which verdicts say how
// they are served here.
func (v *View) elect(a *Address, services []cluster.Service, verdicts []verdict) (s seat) {
	if !v.links {
		return s
	}
	var able []cluster.Service
	for i, service := range services {
		if verdicts[i].good() || verdicts[i].code == cluster.NoLocalEndpoint {
			able = append(able, service)
		}
	}
	terms, linked, why := election.EligibilityOf(v.terms, a.origin, services)
	switch s.linked = linked; {
	case !linked:
		s.code, s.why = cluster.NotAdvertised, why
		return s
	case len(able) == 0:
		return s // What is wrong is said of each.
	case v.electorate == nil:
		s.code, s.why = cluster.WaitingForNodes, "the other nodes are not known yet"
		return s
	}
	from := v.electorate.Address(a.Addr, terms, able, a.claim)
	switch s.owner, s.by = v.electorate.Elect(&from); {
	case s.owner == "":
		s.code, s.why = cluster.NoCandidate, v.electorate.None(&from)
	case s.owner != v.Node:
		s.code, s.why = cluster.AnotherNode, fmt.Sprintf("node %s answers for it (%s)", s.owner, s.by)
	case !slices.ContainsFunc(verdicts, verdict.good):
		s.code, s.why = cluster.NoLocalEndpoint, "this node shall answer for it, and has no endpoint yet"
	default:
		s.answer = &l2.Address{Addr: a.Addr}
		if len(terms.By) > 0 {
			s.answer.Interfaces = terms.Interfaces(a.Addr, &v.elector)
		}
		s.code, s.why = cluster.Announced, fmt.Sprintf("answered for on %s (%s)", v.onInterfaces(terms, a.Addr), s.by)
	}
	return s
}

// sayLinks gives the reason for one Service of an address that goes over L2, or might.
func (v *View) sayLinks(s seat, is verdict, reason func(protocol string, code cluster.Code, format string, args ...any)) {
	switch {
	case !s.linked && s.why == "":
	case s.answer != nil && is.good():
		reason("l2", s.code, "%s", s.why)
	case s.answer != nil:
		reason("l2", is.code, "%s for others that share the address; %s", s.why, is.message)
	case s.code == "":
		reason("l2", is.code, "not announced: %s", is.message)
	default:
		reason("l2", s.code, "not announced: %s", s.why)
	}
}

// onlyL2 says whether BGP has nothing to do with an address: its pool says L2, or says
// Advertised and only L2Advertisements select it.
func (v *View) onlyL2(from cluster.Origin) bool {
	if from.Announce != cluster.AnnounceAdvertised {
		return from.Announce == cluster.AnnounceL2
	}
	return !slices.ContainsFunc(v.fromAdverts, func(a *cluster.Advertisement) bool { return a.SelectsPool(from.Pool) }) &&
		slices.ContainsFunc(v.fromL2, func(a *cluster.L2Advertisement) bool { return a.SelectsPool(from.Pool) })
}

// onInterfaces lists the interfaces to answer on for a sentence. A plan for another node
// does not know them.
func (v *View) onInterfaces(terms election.Eligibility, addr netip.Addr) string {
	if names := terms.Interfaces(addr, &v.elector); len(names) > 0 {
		return strings.Join(names, ", ")
	}
	text := fmt.Sprintf("the interfaces with the subnet of %s", addr)
	for _, a := range terms.By {
		if len(a.Interfaces) > 0 {
			text += fmt.Sprintf(", if L2Advertisement %s allows them (%s)", a.Name, strings.Join(a.Interfaces, ", "))
		}
	}
	return text
}

// answersAlike compares what is decided: whether to probe, and when to announce anew, is for
// holdings to say.
func answersAlike(a, b l2.Address) bool {
	return a.Addr == b.Addr && slices.Equal(a.Interfaces, b.Interfaces)
}

// alike is answersAlike for addresses that may be nil.
func alike(a, b *l2.Address) bool {
	return a == b || a != nil && b != nil && answersAlike(*a, *b)
}
