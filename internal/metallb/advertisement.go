package metallb

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// addAdvertisement converts a BGPAdvertisement. Lists of selectors become several, which together
// announce the same: a prefix of two advertisements is one route, in both programs.
//
// Whatever cannot be kept and is a restriction (pools, nodes, Services, peers, communities such as
// no-export) leaves the whole object out: without it, the route would go further than before.
func (c *converter) addAdvertisement(a *BGPAdvertisement) {
	about := c.about("BGPAdvertisement", a.Name)
	pools, parts, ok := c.scope(about, &a.Spec.Selection)
	if !ok {
		return
	}
	communities, ok := c.communitiesOf(about, a.Spec.Communities)
	if !ok {
		return
	}
	peers, ok := c.peersOf(about, a.Spec.Peers)
	if !ok {
		return
	}
	spec := v1alpha1.BGPAdvertisementSpec{
		Pools: pools, Peers: peers, Communities: communities,
		AggregationLength:   unlessFull(a.Spec.AggregationLength, 32),
		AggregationLengthV6: unlessFull(a.Spec.AggregationLengthV6, 128),
	}
	// MetalLB cannot say 0: that is its value for "unset".
	if a.Spec.LocalPref != 0 {
		spec.LocalPref = new(int64(a.Spec.LocalPref))
	}
	// No difference in the comparison, but in what clients see: MetalLB leaves unused addresses of an
	// aggregate to the node's own routes, which often lead back to the router.
	if spec.AggregationLength != nil || spec.AggregationLengthV6 != nil {
		about.todo("spec.aggregationLength", "nodes of Fanfare reject traffic to addresses of the prefix that no "+
			"Service has, and announce addresses of Services with externalTrafficPolicy Local one by one")
	}
	addParts(about, parts, &c.Advertisements, a, c.in.Advertisements, func(p part) *v1alpha1.BGPAdvertisement {
		spec.NodeSelector, spec.ServiceSelector = p.nodes.selector(), p.services.selector()
		return &v1alpha1.BGPAdvertisement{Spec: spec}
	})
}

// addL2Advertisement converts an L2Advertisement, as addAdvertisement. It needs no preferred nodes: in
// MetalLB 0.16 all selected nodes are equal in the election.
func (c *converter) addL2Advertisement(a *L2Advertisement) {
	about := c.about("L2Advertisement", a.Name)
	pools, parts, ok := c.scope(about, &a.Spec.Selection)
	if !ok {
		return
	}
	interfaces, ok := about.interfaces(a.Spec.Interfaces)
	if !ok {
		return
	}
	spec := v1alpha1.L2AdvertisementSpec{Pools: pools, Interfaces: interfaces}
	// MetalLB answers for any address on any interface, also where hosts have no route to it. The
	// nodes' subnets are not in any object, so that the user must compare them.
	if len(spec.Interfaces) == 0 {
		about.todo("spec.interfaces", "without a list, Fanfare answers on the interfaces that have the address's "+
			"subnet, and MetalLB on all; for addresses of another subnet name the interfaces")
	}
	addParts(about, parts, &c.L2Advertisements, a, c.in.L2Advertisements, func(p part) *v1alpha1.L2Advertisement {
		spec.NodeSelector, spec.ServiceSelector = p.nodes.selector(), p.services.selector()
		return &v1alpha1.L2Advertisement{Spec: spec}
	})
}

// interfaces returns the names, and leaves out what Fanfare takes for a pattern. ok is false if none remains:
// an empty list is for all interfaces.
func (s subject) interfaces(names []string) (list []string, ok bool) {
	for _, n := range names {
		if strings.ContainsAny(n, "*?") {
			s.lost("spec.interfaces", "%q is a name in MetalLB, and no interface has it; in Fanfare it would be a "+
				"pattern, so it is left out", n)
			continue
		}
		list = append(list, n)
	}
	return list, len(list) > 0 || len(names) == 0
}

// A part is what one of several advertisements selects.
type part struct{ nodes, services conjunction }

// scope returns the pools of an advertisement, and a part for each pair of selectors: one of each list must match.
func (c *converter) scope(about subject, s *Selection) (pools []string, parts []part, ok bool) {
	if pools, ok = c.poolsOf(about, s); !ok || !about.valid("spec.nodeSelectors", s.NodeSelectors) ||
		!about.valid("spec.serviceSelectors", s.ServiceSelectors) {
		return nil, nil, false
	}
	for _, nodes := range c.restrict(unite(s.NodeSelectors)) {
		for _, services := range unite(s.ServiceSelectors) {
			parts = append(parts, part{nodes, services})
		}
	}
	return pools, parts, true
}

// addParts adds an object to out for each part of an advertisement, of those in all.
func addParts[A, B metav1.Object](about subject, parts []part, out *[]A, of B, all []B, convert func(part) A) {
	taken := func(name string) bool { return named(*out, name) || named(all, name) }
	for i, p := range parts {
		o := convert(p)
		o.SetName(numbered(of.GetName(), i, taken))
		*out = append(*out, o)
	}
	if n := len(parts); n > 1 {
		about.todo("spec.nodeSelectors, spec.serviceSelectors",
			"become %d advertisements with one selector each, which announce together what this one does", n)
	}
}

// peersOf returns the names of the converted peers: one of MetalLB's may have become several, and
// the advertisement is for all of them. ok is false if none remains: an empty list is for all
// routers.
func (c *converter) peersOf(about subject, names []string) (peers []string, ok bool) {
	for _, n := range names {
		if !about.unknown("spec.peers", n, c.peers[n] != nil) {
			peers = append(peers, c.peers[n]...)
		}
	}
	slices.Sort(peers)
	if len(names) > 0 && len(peers) == 0 {
		about.todo("spec.peers", "no peer remains, so the object is not converted")
		return nil, false
	}
	return slices.Compact(peers), true
}

// communitiesOf replaces names by their values. ok is false for an unknown name: without its
// community, the route might go further than it should.
func (c *converter) communitiesOf(about subject, list []string) (values []string, ok bool) {
	for _, name := range list {
		value := communityValue(c.in.Communities, name)
		if _, ok := numbers(value); !ok {
			about.lost("spec.communities", "%q is neither the name of a Community with a valid value nor a value "+
				"such as 64500:1 or large:64500:1:2, so the object is not converted; define it, or write its value",
				name)
			return nil, false
		}
		values = append(values, value)
	}
	slices.Sort(values)
	return slices.Compact(values), true
}

// communityValue returns the value of a community that has a name, and any other text as it is:
// MetalLB has names and values in one list, and looks for a name first.
func communityValue(defined []*Community, name string) string {
	for _, o := range defined {
		for _, alias := range o.Spec.Communities {
			if alias.Name == name {
				return alias.Value
			}
		}
	}
	return name
}

// unlessFull returns nil for the length of a single address, which is the default.
func unlessFull(length *int32, full int32) *int32 {
	if length == nil || *length == full {
		return nil
	}
	return length
}
