package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// plain is how an address of a pool with announce BGP is announced: on its own, to
// every router that selects the node.
var plain = []*cluster.Advertisement{{Length4: 32, Length6: 128}}

// A announcement is what announces one address.
type announcement struct {
	routes []bgp.Route // sorted by prefix, each of which contains the address
	// aggregated are the offers of those routes that are aggregates: other addresses
	// have a part in them.
	aggregated []offer
	// local are the aggregates that it would be part of if the policy of owner were
	// not Local.
	local []netip.Prefix
	owner cluster.Name
	// refused says which aggregates are not used, and why, a sentence each.
	refused []string
	clashes []remark
	// unfit says which routes are left out since no router can be told their attributes, a
	// sentence each.
	unfit []string
}

// advertised are the advertisements by which a Service's address is announced over
// BGP on this node, and why there are none.
func (v *View) advertised(from cluster.Origin, s *cluster.Spec) (list []*cluster.Advertisement, why string) {
	switch from.Announce {
	case cluster.AnnounceBGP:
		return plain, ""
	case cluster.AnnounceL2:
		return nil, fmt.Sprintf("AddressPool %s has spec.announce L2", from.Pool)
	case cluster.AnnounceAdvertised:
		return v.selecting(from.Pool, s)
	default:
		return nil, "no AddressPool contains it any more, and nothing records how that pool was announced; " +
			"create the AddressPool again, or set spec.announce of the AddressClaim"
	}
}

// selecting are the BGPAdvertisements that select a Service's address of a pool, this
// node and one of its routers, and why there are none.
func (v *View) selecting(pool string, s *cluster.Spec) (list []*cluster.Advertisement, why string) {
	var about, elsewhere, peerless []string
	for _, a := range v.fromAdverts {
		if !a.SelectsPool(pool) {
			continue
		}
		about = append(about, a.Name)
		switch {
		case !a.ServiceSelector.Matches(s.Labels):
		case v.Self != nil && !a.NodeSelector.Matches(v.Self.Labels):
			elsewhere = append(elsewhere, a.Name)
		case !v.reaches(a):
			peerless = append(peerless, a.Name)
		default:
			list = append(list, a)
		}
	}
	switch {
	case len(list) > 0:
		return list, ""
	case len(about) == 0:
		return nil, fmt.Sprintf("AddressPool %s has spec.announce Advertised, and no BGPAdvertisement or L2Advertisement selects it", pool)
	case len(peerless) > 0:
		return nil, fmt.Sprintf("no router that BGPAdvertisement %s names has a session with this node", cluster.Enumerate(peerless)) + v.whyUnheard(peerless)
	case len(elsewhere) > 0:
		return nil, fmt.Sprintf("the nodeSelector of BGPAdvertisement %s does not match this node", cluster.Enumerate(elsewhere))
	default:
		return nil, fmt.Sprintf("the serviceSelector of BGPAdvertisement %s does not match the Service, and no other selects its pool", cluster.Enumerate(about))
	}
}

// reaches says whether this node has a session with a router that a names.
func (v *View) reaches(a *cluster.Advertisement) bool {
	return len(a.Peers) == 0 || slices.ContainsFunc(v.sessions, func(s bgp.Session) bool { return slices.Contains(a.Peers, s.Name) })
}

// whyUnheard says why no router hears the first of some advertisements that name a duplicate;
// empty where none does.
func (v *View) whyUnheard(names []string) string {
	for _, a := range v.fromAdverts {
		if d, ok := a.NamesOnly(v.Duplicates); ok && slices.Contains(names, a.Name) {
			return fmt.Sprintf(": it names BGPPeer %s, but %s", d.Peer.Name, d.Why())
		}
	}
	return ""
}

// announcement merges what all advertisements want of an address that services hold: a
// prefix that two of them want goes to the routers of both. It is empty if the
// address is not to be announced.
func (v *View) announcement(a *Address, services []cluster.Service, verdicts []verdict, away *verdict) announcement {
	var p announcement
	if away != nil || v.refusal != "" {
		return p
	}
	var adverts []*cluster.Advertisement
	var own bgp.Attributes
	for i, s := range services {
		if verdicts[i].code != "" {
			continue
		}
		own = withCommunities(own, communities(s.Communities))
		list, _ := v.advertised(a.origin, s.Spec)
		for _, ad := range list {
			if !slices.Contains(adverts, ad) {
				adverts = append(adverts, ad)
			}
		}
	}
	local := slices.IndexFunc(services, func(s cluster.Service) bool {
		return s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	})
	if local >= 0 {
		p.owner = services[local].Name
	}
	var offers []offer
	for i, ad := range adverts {
		offers = mergeOffer(offers, offer{p.prefix(v, ad, a.Addr, local >= 0), adverts[i : i+1], own})
	}
	for _, o := range offers {
		r, clashes := v.route(o)
		if err := r.Validate(); err != nil {
			p.unfit = append(p.unfit, err.Error())
			continue
		}
		p.routes = append(p.routes, r)
		if o.prefix.IsSingleIP() {
			p.clashes = append(p.clashes, clashes...)
		} else {
			p.aggregated = append(p.aggregated, o)
		}
	}
	return p
}

// prefix is what an advertisement announces an address by. That is the address
// alone if the policy of anybody who holds it is Local: an aggregate would attract
// its traffic to nodes that cannot answer.
func (p *announcement) prefix(v *View, ad *cluster.Advertisement, addr netip.Addr, local bool) netip.Prefix {
	prefix, host := ad.Prefix(addr), netip.PrefixFrom(addr, addr.BitLen())
	if prefix == host {
		return host
	}
	if local {
		p.local = append(p.local, prefix)
		return host
	}
	if foreign := v.foreign(prefix); foreign != "" {
		p.refused = append(p.refused, fmt.Sprintf("announced on its own, and not as part of %s as BGPAdvertisement %s wants, for that contains %s; "+
			"choose a longer aggregation length", prefix, ad.Name, foreign))
		return host
	}
	if !v.allNodes {
		p.refused = append(p.refused, fmt.Sprintf("announced on its own, and not yet as part of %s as BGPAdvertisement %s wants: the Nodes, whose addresses it must not contain, "+
			"have not been read", prefix, ad.Name))
		return host
	}
	return prefix
}

// foreign says what a prefix contains that is not for Services; empty when
// nothing is known. Whoever sends to it would be refused by this node, and where
// it is a router the session would die of its own routes.
func (v *View) foreign(prefix netip.Prefix) string {
	for _, f := range v.others {
		if prefix.Overlaps(f.prefix) {
			return f.what
		}
	}
	if o := (&cluster.Snapshot{Occupied: v.occupied}).OccupiedIn(prefix); o.By != "" {
		return o.Text()
	}
	return ""
}

// An other is a network that is in use by something else than Services.
type other struct {
	prefix netip.Prefix
	what   string
}

// nobodys are in use on every link of every node. To refuse them would cut off the
// node itself: router advertisements, for one, go to a multicast address.
var nobodys = []other{
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback addresses (127.0.0.0/8)"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local addresses (169.254.0.0/16)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast addresses (224.0.0.0/4)"},
	{netip.MustParsePrefix("::1/128"), "the loopback address (::1)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local addresses (fe80::/10)"},
	{netip.MustParsePrefix("ff00::/8"), "multicast addresses (ff00::/8)"},
}

func (v *View) lookAtOthers(peers []*cluster.Peer) {
	host := func(a netip.Addr, format string) {
		if a.IsValid() {
			a = a.WithZone("")
			v.others = append(v.others, other{netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf(format, a)})
		}
	}
	if v.Self != nil {
		for _, a := range v.Self.InternalIPs {
			host(a, "this node's address %s")
		}
		for _, p := range v.Self.PodCIDRs {
			v.others = append(v.others, other{p.Masked(), fmt.Sprintf("the pod network %s", p)})
		}
	}
	for _, p := range v.clients.CIDRs {
		v.others = append(v.others, other{p.Masked(), fmt.Sprintf("the pod network %s", p)})
	}
	for _, p := range peers {
		host(p.PeerAddress, "the address %s of router "+p.Name)
		host(p.SourceAddress, "the address %s, which has the session with router "+p.Name)
	}
	v.others = append(v.others, nobodys...)
}

// says is what is said of an address that p announces.
func (p announcement) says(v *View) string {
	var parts []string
	for _, r := range p.routes {
		part, with := "to "+v.toldOf(r), r.Attributes.String()
		switch {
		case !r.Prefix.IsSingleIP(): // with what, depends on other addresses as well
			part += " as part of " + r.Prefix.String()
		case r.Attributes.Differ():
			part = with
		case with != "":
			part += " with " + with
		}
		parts = append(parts, part+v.weightOf(r))
	}
	text := "announced " + strings.Join(parts, ", and ")
	if len(p.local) > 0 {
		text += fmt.Sprintf(", not as part of %s: externalTrafficPolicy of %s is Local", p.local[0], p.owner)
	}
	return text
}
