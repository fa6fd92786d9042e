package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// hostAdvertisement announces an address of a pool with announce BGP: on its own, to every
// router that selects the node.
var hostAdvertisement = []*cluster.Advertisement{{Length4: 32, Length6: 128}}

// An announcement is how one address is announced over BGP.
type announcement struct {
	routes []bgp.Route // sorted by prefix; each contains the address
	// aggregated are the specs of the routes that are aggregates, which depend on other
	// addresses, too.
	aggregated []routeSpec
	// notAggregated are aggregates that leave the address out because of the policy Local of
	// localService.
	notAggregated     []netip.Prefix
	localService      cluster.Name
	refusedAggregates []string  // a sentence each: the aggregate and why it is not used
	conflicts         []finding // of advertisements
	invalid           []string  // a sentence each: a route that exceeds a BGP message
	oversized         string    // why the communities of Services are left out, empty if they are not
}

// advertisements are the objects that say how addresses are announced.
type advertisements struct {
	self     *cluster.Node // nil without a Node object of this node
	routers  *routers
	reserved *reserved
	pools    []*cluster.Pool
	bgp      []*cluster.Advertisement   // whether or not they select this node
	l2       []*cluster.L2Advertisement // likewise
}

// announce merges the advertisements of an address; a prefix of two of them goes to the routers of
// both.
func (s *advertisements) announce(a *Address, shares []addressService) (p announcement) {
	var adverts []*cluster.Advertisement
	for _, of := range shares {
		if !of.good() {
			continue
		}
		list, _ := s.of(a.origin, of.service.Spec)
		for _, ad := range list {
			if !slices.Contains(adverts, ad) {
				adverts = append(adverts, ad)
			}
		}
	}
	local := slices.IndexFunc(shares, addressService.local)
	if local >= 0 {
		p.localService = shares[local].service.Name
	}
	p.addRoutes(s.routers, p.specs(s.reserved, a.Addr, adverts, local >= 0, s.ownCommunities(a, shares)))
	return p
}

// specs returns what adverts ask for. Communities of Services are only on routes of their address
// alone.
func (a *announcement) specs(taken *reserved, addr netip.Addr, adverts []*cluster.Advertisement, local bool,
	own bgp.Attributes) (specs []routeSpec) {
	for i, ad := range adverts {
		s := routeSpec{prefix: a.prefix(taken, ad, addr, local), adverts: adverts[i : i+1]}
		if s.prefix.IsSingleIP() {
			s.communities = own
		}
		specs = addSpec(specs, s)
	}
	return specs
}

// addRoutes adds the routes of specs.
func (a *announcement) addRoutes(to *routers, specs []routeSpec) {
	for _, s := range specs {
		r, findings := to.route(s)
		err := r.Validate()
		if err != nil && s.communities != (bgp.Attributes{}) {
			// A Service must not lose its route by its own annotation.
			a.oversized, s.communities = err.Error(), bgp.Attributes{}
			r, findings = to.route(s)
			err = r.Validate()
		}
		if err != nil {
			a.invalid = append(a.invalid, err.Error())
			continue
		}
		a.routes = append(a.routes, r)
		// Findings about aggregates are reported once, by aggregateRoutes.
		if s.prefix.IsSingleIP() {
			a.conflicts = append(a.conflicts, findings...)
		} else {
			a.aggregated = append(a.aggregated, s)
		}
	}
}

// text describes the announcement.
func (a announcement) text(to *routers) string {
	var parts []string
	for _, r := range a.routes {
		part, with := "to "+to.recipientsOf(r), r.Attributes.String()
		switch {
		case !r.Prefix.IsSingleIP(): // The attributes depend on other addresses, too.
			part += " as part of " + r.Prefix.String()
		case r.Attributes.Differ():
			part = with
		case with != "":
			part += " with " + with
		}
		parts = append(parts, part+to.weightText(r))
	}
	text := Wanted + strings.Join(parts, ", and ")
	if len(a.notAggregated) > 0 {
		text += fmt.Sprintf(", not as part of %s: externalTrafficPolicy of %s is Local", a.notAggregated[0],
			a.localService)
	}
	return text
}

// of returns the advertisements that announce a Service's address over BGP on
// this node, or why there are none.
func (s *advertisements) of(from cluster.Origin, spec *cluster.Spec) (list []*cluster.Advertisement, why string) {
	switch from.Announce {
	case cluster.AnnounceBGP:
		return hostAdvertisement, ""
	case cluster.AnnounceL2:
		return nil, fmt.Sprintf("AddressPool %s has spec.announce L2", from.Pool)
	case cluster.AnnounceAdvertised:
		return s.selected(from.Pool, spec.Labels)
	default:
		return nil, "it is no longer in an AddressPool, and how its pool was announced is not recorded; " +
			"create the AddressPool again, or set spec.announce of the AddressClaim"
	}
}

// selected returns the BGPAdvertisements that select the pool, the Service, this
// node and one of its routers, or why there are none.
func (s *advertisements) selected(pool string, labels map[string]string) (list []*cluster.Advertisement, why string) {
	var ofPool, otherNodes, withoutPeer []string
	for _, a := range s.bgp {
		if !a.SelectsPool(pool) {
			continue
		}
		ofPool = append(ofPool, a.Name)
		switch {
		case !a.ServiceSelector.Matches(labels):
		case s.self != nil && !a.NodeSelector.Matches(s.self.Labels):
			otherNodes = append(otherNodes, a.Name)
		case !s.routers.hasPeer(a):
			withoutPeer = append(withoutPeer, a.Name)
		default:
			list = append(list, a)
		}
	}
	switch {
	case len(list) > 0:
		return list, ""
	case len(ofPool) == 0:
		return nil, fmt.Sprintf("AddressPool %s has spec.announce Advertised, and no BGPAdvertisement or "+
			"L2Advertisement selects it", pool)
	case len(withoutPeer) > 0:
		return nil, fmt.Sprintf("no router that BGPAdvertisement %s names has a session with this node",
			cluster.Enumerate(withoutPeer)) + s.duplicateText(withoutPeer)
	case len(otherNodes) > 0:
		return nil, fmt.Sprintf("the nodeSelector of BGPAdvertisement %s does not match this node",
			cluster.Enumerate(otherNodes))
	default:
		return nil, fmt.Sprintf("the serviceSelector of BGPAdvertisement %s does not match the Service, and no "+
			"other selects its pool", cluster.Enumerate(ofPool))
	}
}

// duplicateText explains, where users look for the missing announcement, the first of these advertisements that names
// only a duplicate peer.
func (s *advertisements) duplicateText(names []string) string {
	for _, a := range s.bgp {
		if d, ok := a.NamesOnly(s.routers.duplicates); ok && slices.Contains(names, a.Name) {
			return fmt.Sprintf(": it names BGPPeer %s, but %s", d.Peer.Name, d.Why())
		}
	}
	return ""
}

// duplicateProblems returns the problems of duplicates, and of advertisements that name only
// duplicates.
func (s *advertisements) duplicateProblems() (all []cluster.Problem) {
	for _, d := range s.routers.duplicates {
		all = append(all, d.Problem(s.routers.node))
	}
	for _, a := range s.bgp {
		if s.self == nil || !a.NodeSelector.Matches(s.self.Labels) || s.routers.hasPeer(a) {
			continue
		}
		if d, ok := a.NamesOnly(s.routers.duplicates); ok {
			all = append(all, d.AdvertisementProblem(a, s.routers.node))
		}
	}
	return all
}

// isL2Only reports whether an address is not for BGP: its pool has announce L2, or Advertised
// and only L2Advertisements select it.
func (s *advertisements) isL2Only(from cluster.Origin) bool {
	if from.Announce != cluster.AnnounceAdvertised {
		return from.Announce == cluster.AnnounceL2
	}
	return !slices.ContainsFunc(s.bgp, func(a *cluster.Advertisement) bool { return a.SelectsPool(from.Pool) }) &&
		slices.ContainsFunc(s.l2, func(a *cluster.L2Advertisement) bool { return a.SelectsPool(from.Pool) })
}
