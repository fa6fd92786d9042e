package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A routeSpec is a prefix with the advertisements that announce it.
type routeSpec struct {
	prefix  netip.Prefix
	adverts []*cluster.Advertisement // the most specific first
	// communities are what Services add: none on an aggregate, which other Services'
	// addresses depend on.
	communities bgp.Attributes
}

// compareSpecs sorts by prefix: a list has one spec for a prefix.
func compareSpecs(a, b routeSpec) int { return sortedset.ComparePrefixes(a.prefix, b.prefix) }

// addSpec adds s to sorted specs. It merges the advertisements of a prefix.
func addSpec(specs []routeSpec, s routeSpec) []routeSpec {
	i, found := slices.BinarySearchFunc(specs, s, compareSpecs)
	if !found {
		return slices.Insert(specs, i, s)
	}
	for _, ad := range s.adverts {
		if !slices.Contains(specs[i].adverts, ad) {
			// Another spec may share the slice.
			specs[i].adverts = append(slices.Clone(specs[i].adverts), ad)
			slices.SortFunc(specs[i].adverts, moreSpecific)
		}
	}
	return specs
}

// ownCommunities returns the communities that Services may add to the route of an address.
func (s *advertisements) ownCommunities(a *Address, shares []addressService) (own bgp.Attributes) {
	pool := cluster.PoolNamed(s.pools, a.origin.Pool)
	for _, of := range shares {
		if of.good() { // Services that cannot be announced contribute nothing.
			allowed, _ := pool.PermitCommunities(of.service.Communities)
			own = withCommunities(own, communities(allowed))
		}
	}
	return own
}

// refusedCommunities says which communities of a Service are not on the routes of its address,
// empty if all are.
func (s *advertisements) refusedCommunities(a *Address, of addressService, p announcement) (all []string) {
	if of.service.Communities == nil {
		return nil
	}
	pool := cluster.PoolNamed(s.pools, a.origin.Pool)
	for _, p := range pool.RefusedCommunities(of.service.Spec) {
		all = append(all, p.Clause())
	}
	if p.oversized != "" {
		return append(all, "the communities of Services are left out: with them, "+p.oversized)
	}
	allowed, _ := pool.PermitCommunities(of.service.Communities)
	if i := slices.IndexFunc(p.routes, func(r bgp.Route) bool { return !r.Prefix.IsSingleIP() }); i >= 0 &&
		allowed != nil {
		all = append(all, fmt.Sprintf("its communities are not on %s, which is the route of other addresses, too",
			p.routes[i].Prefix))
	}
	return all
}

// moreSpecific sorts advertisements by precedence where they contradict each other: fewer
// routers win, then fewer Services, addresses, nodes. The name decides between equals, since
// the age would not survive a restored backup.
func moreSpecific(a, b *cluster.Advertisement) int {
	_, of := specificity(a)
	_, than := specificity(b)
	return cmp.Or(cmp.Compare(than, of), strings.Compare(a.Name, b.Name))
}

// specificity returns the fields that make an advertisement more specific, and their weight.
func specificity(a *cluster.Advertisement) (fields []string, weight int) {
	for i, f := range []struct {
		name string
		set  bool
	}{
		{"nodeSelector", !a.NodeSelector.Empty()},
		{"pools", len(a.Pools) > 0},
		{"serviceSelector", !a.ServiceSelector.Empty()},
		{"peers", len(a.Peers) > 0},
	} {
		if f.set {
			fields, weight = append(fields, f.name), weight|1<<i
		}
	}
	slices.Reverse(fields)
	return fields, weight
}

// A finding is a code and message that become a Reason.
type finding struct {
	code    cluster.Code
	message string
}

// route makes the route of s, with findings about contradicting advertisements.
func (r *routers) route(s routeSpec) (out bgp.Route, findings []finding) {
	out = bgp.Route{Prefix: s.prefix, Peers: r.peersOf(s.adverts)}
	if s.communities == (bgp.Attributes{}) && !slices.ContainsFunc(s.adverts, hasAttributes) {
		return out, nil
	}
	attributes, conflicts := map[string]bgp.Attributes{}, map[conflict][]string{}
	for _, session := range r.sessions {
		if out.Peers.Has(session.Name) {
			attributes[session.Name] = s.attributesFor(session.Name,
				func(c conflict) { conflicts[c] = append(conflicts[c], session.Name) })
		}
	}
	out.Attributes = bgp.ForEach(attributes)
	for c, peers := range conflicts {
		findings = append(findings, c.finding(s.prefix, peers))
	}
	slices.SortFunc(findings, func(a, b finding) int { return strings.Compare(a.message, b.message) })
	return out, findings
}

// hasAttributes reports whether an advertisement sets any attribute. Most set none, and their
// routes need no decision for each session.
func hasAttributes(a *cluster.Advertisement) bool {
	return a.Communities != nil || a.LocalPref != nil || a.MED != nil || a.Prepend != nil
}

// peersOf returns the sessions that any of adverts applies to; empty for all sessions, so that a
// route for all is equal whether or not advertisements name them.
func (r *routers) peersOf(adverts []*cluster.Advertisement) bgp.Peers {
	var names []string
	for _, s := range r.sessions {
		if slices.ContainsFunc(adverts, func(a *cluster.Advertisement) bool { return appliesTo(a, s.Name) }) {
			names = append(names, s.Name)
		}
	}
	if len(names) == len(r.sessions) {
		return ""
	}
	return bgp.PeersOf(names...)
}

// appliesTo reports whether an advertisement is for a session: without peers it is for all.
func appliesTo(a *cluster.Advertisement, session string) bool {
	return len(a.Peers) == 0 || slices.Contains(a.Peers, session)
}

// attributesFor returns the attributes for the router of a session: all communities, and each
// number from the most specific advertisement that has it.
func (s routeSpec) attributesFor(session string, conflicting func(conflict)) bgp.Attributes {
	out := s.communities
	var localPref, med, prepend metricChoice
	for _, a := range s.adverts {
		if !appliesTo(a, session) {
			continue
		}
		out = withCommunities(out, communities(a.Communities))
		localPref.consider("localPref", a, a.LocalPref, conflicting)
		med.consider("med", a, a.MED, conflicting)
		prepend.consider("asPathPrepend", a, toUint32(a.Prepend), conflicting)
	}
	out.LocalPref, out.MED, out.Prepend = localPref.metric(), med.metric(), uint8(prepend.value())
	return out
}

func toUint32(n *uint8) *uint32 {
	if n == nil {
		return nil
	}
	return new(uint32(*n))
}

// A metricChoice is a number from the first advertisement that has it.
type metricChoice struct {
	by *cluster.Advertisement
	n  *uint32
}

// consider takes n if it is the first one. A different value of a later, less specific
// advertisement is a conflict. It is reported, because users may expect that value.
func (m *metricChoice) consider(field string, a *cluster.Advertisement, n *uint32, conflicting func(conflict)) {
	switch {
	case n == nil:
	case m.n == nil:
		m.by, m.n = a, n
	case *m.n != *n:
		conflicting(conflict{field, m.by, a, *m.n, *n})
	}
}

func (m metricChoice) value() uint32 {
	if m.n == nil {
		return 0
	}
	return *m.n
}

func (m metricChoice) metric() bgp.Metric { return bgp.Metric{Set: m.n != nil, Value: m.value()} }

// A conflict is a number on which two advertisements differ.
type conflict struct {
	field         string
	winner, loser *cluster.Advertisement
	won, lost     uint32
}

// finding describes the conflict, and the peers whose routes it concerns.
func (c conflict) finding(prefix netip.Prefix, peers []string) finding {
	code, why := c.decision()
	return finding{code, fmt.Sprintf("BGPAdvertisement %s and %s give %s to %s different %s, %d and "+
		"%d; %d counts, since %s",
		c.winner.Name, c.loser.Name, prefix, cluster.Enumerate(peers), c.field, c.won, c.lost, c.won, why)}
}

// decision explains why the winner has precedence. Precedence by name only is a clash, since the
// user has probably not meant it; a more specific advertisement is an override.
func (c conflict) decision() (cluster.Code, string) {
	by, weight := specificity(c.winner)
	less, other := specificity(c.loser)
	if weight == other {
		return cluster.AttributeClash, c.winner.Name + " comes first by name"
	}
	i := slices.IndexFunc(by, func(f string) bool { return !slices.Contains(less, f) })
	return cluster.AttributeOverride, fmt.Sprintf("%s has %s and %s has not", c.winner.Name, by[i], c.loser.Name)
}

// communities translates the communities of a Service or an advertisement.
func communities(c *cluster.Communities) bgp.Attributes {
	if c == nil {
		return bgp.Attributes{}
	}
	return bgp.Attributes{
		Communities: bgp.CommunitiesOf(c.Standard...), LargeCommunities: bgp.LargeCommunitiesOf(c.Large...),
	}
}

// withCommunities returns a with the communities of b added.
func withCommunities(a, b bgp.Attributes) bgp.Attributes {
	a.Communities = a.Communities.With(b.Communities)
	a.LargeCommunities = a.LargeCommunities.With(b.LargeCommunities)
	return a
}
