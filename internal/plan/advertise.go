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

// announcementOf merges the advertisements of an address; a prefix of two of them goes to the
// routers of both. It is empty if the address is not announced.
func (v *View) announcementOf(a *Address, shares []addressService, remote *addressService) announcement {
	var p announcement
	if remote != nil || v.noAnnounce != "" || a.Obstruction != "" {
		return p
	}
	var adverts []*cluster.Advertisement
	for _, s := range shares {
		if !s.good() {
			continue
		}
		list, _ := v.advertisementsFor(a.origin, s.service.Spec)
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
	p.addRoutes(v, v.specsOf(&p, a, adverts, local >= 0, v.ownCommunities(a, shares)))
	return p
}

// specsOf returns what adverts ask for. Communities of Services are only on routes of their
// address alone.
func (v *View) specsOf(p *announcement, a *Address, adverts []*cluster.Advertisement, local bool, own bgp.Attributes) (specs []routeSpec) {
	for i, ad := range adverts {
		s := routeSpec{prefix: p.prefix(v, ad, a.Addr, local), adverts: adverts[i : i+1]}
		if s.prefix.IsSingleIP() {
			s.communities = own
		}
		specs = addSpec(specs, s)
	}
	return specs
}

// addRoutes adds the routes of specs.
func (a *announcement) addRoutes(v *View, specs []routeSpec) {
	for _, s := range specs {
		r, findings := v.route(s)
		err := r.Validate()
		if err != nil && s.communities != (bgp.Attributes{}) {
			// A Service must not lose its route by its own annotation.
			a.oversized, s.communities = err.Error(), bgp.Attributes{}
			r, findings = v.route(s)
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
func (a announcement) text(v *View) string {
	var parts []string
	for _, r := range a.routes {
		part, with := "to "+v.recipientsOf(r), r.Attributes.String()
		switch {
		case !r.Prefix.IsSingleIP(): // The attributes depend on other addresses, too.
			part += " as part of " + r.Prefix.String()
		case r.Attributes.Differ():
			part = with
		case with != "":
			part += " with " + with
		}
		parts = append(parts, part+v.weightText(r))
	}
	text := Wanted + strings.Join(parts, ", and ")
	if len(a.notAggregated) > 0 {
		text += fmt.Sprintf(", not as part of %s: externalTrafficPolicy of %s is Local", a.notAggregated[0], a.localService)
	}
	return text
}

// advertisementsFor returns the advertisements that announce a Service's address over BGP on
// this node, or why there are none.
func (v *View) advertisementsFor(from cluster.Origin, s *cluster.Spec) (list []*cluster.Advertisement, why string) {
	switch from.Announce {
	case cluster.AnnounceBGP:
		return hostAdvertisement, ""
	case cluster.AnnounceL2:
		return nil, fmt.Sprintf("AddressPool %s has spec.announce L2", from.Pool)
	case cluster.AnnounceAdvertised:
		return v.selectAdvertisements(from.Pool, s)
	default:
		return nil, "it is no longer in an AddressPool, and how its pool was announced is not recorded; " +
			"create the AddressPool again, or set spec.announce of the AddressClaim"
	}
}

// selectAdvertisements returns the BGPAdvertisements that select the pool, the Service, this
// node and one of its routers, or why there are none.
func (v *View) selectAdvertisements(pool string, s *cluster.Spec) (list []*cluster.Advertisement, why string) {
	var ofPool, otherNodes, withoutPeer []string
	for _, a := range v.fromAdverts {
		if !a.SelectsPool(pool) {
			continue
		}
		ofPool = append(ofPool, a.Name)
		switch {
		case !a.ServiceSelector.Matches(s.Labels):
		case v.Self != nil && !a.NodeSelector.Matches(v.Self.Labels):
			otherNodes = append(otherNodes, a.Name)
		case !v.hasPeer(a):
			withoutPeer = append(withoutPeer, a.Name)
		default:
			list = append(list, a)
		}
	}
	switch {
	case len(list) > 0:
		return list, ""
	case len(ofPool) == 0:
		return nil, fmt.Sprintf("AddressPool %s has spec.announce Advertised, and no BGPAdvertisement or L2Advertisement selects it", pool)
	case len(withoutPeer) > 0:
		return nil, fmt.Sprintf("no router that BGPAdvertisement %s names has a session with this node", cluster.Enumerate(withoutPeer)) + v.duplicateText(withoutPeer)
	case len(otherNodes) > 0:
		return nil, fmt.Sprintf("the nodeSelector of BGPAdvertisement %s does not match this node", cluster.Enumerate(otherNodes))
	default:
		return nil, fmt.Sprintf("the serviceSelector of BGPAdvertisement %s does not match the Service, and no other selects its pool", cluster.Enumerate(ofPool))
	}
}

// duplicateText explains, where users look for the missing announcement, the first of these advertisements that names only a duplicate peer.
func (v *View) duplicateText(names []string) string {
	for _, a := range v.fromAdverts {
		if d, ok := a.NamesOnly(v.Duplicates); ok && slices.Contains(names, a.Name) {
			return fmt.Sprintf(": it names BGPPeer %s, but %s", d.Peer.Name, d.Why())
		}
	}
	return ""
}
