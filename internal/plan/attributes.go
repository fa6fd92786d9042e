package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// An offer is a prefix with all that has it announced.
type offer struct {
	prefix  netip.Prefix
	adverts []*cluster.Advertisement // the most specific first
	// own are the communities that Services want on their routes.
	own bgp.Attributes
}

func (o offer) equal(p offer) bool {
	return o.prefix == p.prefix && o.own == p.own && slices.Equal(o.adverts, p.adverts)
}

// mergeOffer adds an offer to a sorted list. One of its prefix gets its
// advertisements and communities, too.
func mergeOffer(offers []offer, o offer) []offer {
	i, found := slices.BinarySearchFunc(offers, o, func(a, b offer) int { return sortedset.ComparePrefixes(a.prefix, b.prefix) })
	if !found {
		return slices.Insert(offers, i, o)
	}
	offers[i].own = withCommunities(offers[i].own, o.own)
	for _, ad := range o.adverts {
		if !slices.Contains(offers[i].adverts, ad) {
			// A new slice: the one that is there may be another offer's as well.
			offers[i].adverts = append(slices.Clone(offers[i].adverts), ad)
			slices.SortFunc(offers[i].adverts, moreSpecific)
		}
	}
	return offers
}

// merge is mergeOffer without the communities of an offer for which a route has no room
// beside those of others; why says so.
func (v *View) merge(offers []offer, o offer) (merged []offer, why error) {
	i, found := slices.BinarySearchFunc(offers, o, func(a, b offer) int { return sortedset.ComparePrefixes(a.prefix, b.prefix) })
	if !found || withCommunities(offers[i].own, o.own) == offers[i].own {
		return mergeOffer(offers, o), nil
	}
	alone := mergeOffer(slices.Clone(offers[i:i+1]), o)
	r, _ := v.route(alone[0])
	if why = r.Validate(); why != nil {
		o.own = bgp.Attributes{}
	}
	return mergeOffer(offers, o), why
}

// moreSpecific sorts advertisements by who decides where two contradict each other:
// the one that is for fewer routers, else Services, else addresses, else nodes. A
// name decides between equals, since age would not survive a restored backup.
func moreSpecific(a, b *cluster.Advertisement) int {
	_, of := specifics(a)
	_, than := specifics(b)
	return cmp.Or(cmp.Compare(than, of), strings.Compare(a.Name, b.Name))
}

// specifics are the fields by which an advertisement is more specific than one
// without them, and how much they count together.
func specifics(a *cluster.Advertisement) (fields []string, weight int) {
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

// A remark is what a reason says of how something is announced.
type remark struct {
	code    cluster.Code
	message string
}

// route is what an offer makes: to whom the prefix is announced, and with what; and
// what had to be decided between advertisements for that.
func (v *View) route(o offer) (r bgp.Route, clashes []remark) {
	r = bgp.Route{Prefix: o.prefix, Peers: v.peers(o.adverts)}
	if o.own == (bgp.Attributes{}) && !slices.ContainsFunc(o.adverts, hasAttributes) {
		return r, nil
	}
	tell, found := map[string]bgp.Attributes{}, map[clash][]string{}
	for _, s := range v.sessions {
		if r.Peers.Has(s.Name) {
			tell[s.Name] = o.tell(s.Name, func(c clash) { found[c] = append(found[c], s.Name) })
		}
	}
	r.Attributes = bgp.ForEach(tell)
	for c, peers := range found {
		clashes = append(clashes, c.of(o.prefix, peers))
	}
	slices.SortFunc(clashes, func(a, b remark) int { return strings.Compare(a.message, b.message) })
	return r, clashes
}

func hasAttributes(a *cluster.Advertisement) bool {
	return a.Communities != nil || a.LocalPref != nil || a.MED != nil || a.Prepend != nil
}

// peers are the sessions that any of adverts names. Empty: all, which is nothing
// special if they are named.
func (v *View) peers(adverts []*cluster.Advertisement) bgp.Peers {
	var names []string
	for _, s := range v.sessions {
		if slices.ContainsFunc(adverts, func(a *cluster.Advertisement) bool { return tells(a, s.Name) }) {
			names = append(names, s.Name)
		}
	}
	if len(names) == len(v.sessions) {
		return ""
	}
	return bgp.PeersOf(names...)
}

// tells says whether an advertisement is for the router of a session.
func tells(a *cluster.Advertisement, session string) bool {
	return len(a.Peers) == 0 || slices.Contains(a.Peers, session)
}

// tell is what the router of a session is told: the communities of all, and of each
// number the most specific advertisement's.
func (o offer) tell(session string, clashed func(clash)) bgp.Attributes {
	told := o.own
	var localPref, med, prepend pick
	for _, a := range o.adverts {
		if !tells(a, session) {
			continue
		}
		told = withCommunities(told, communities(a.Communities))
		localPref.consider("localPref", a, a.LocalPref, clashed)
		med.consider("med", a, a.MED, clashed)
		prepend.consider("asPathPrepend", a, widened(a.Prepend), clashed)
	}
	told.LocalPref, told.MED, told.Prepend = localPref.metric(), med.metric(), uint8(prepend.value())
	return told
}

func widened(n *uint8) *uint32 {
	if n == nil {
		return nil
	}
	return new(uint32(*n))
}

// A pick is a number of which the first advertisement that has it decides.
type pick struct {
	by *cluster.Advertisement
	n  *uint32
}

func (p *pick) consider(field string, a *cluster.Advertisement, n *uint32, clashed func(clash)) {
	switch {
	case n == nil:
	case p.n == nil:
		p.by, p.n = a, n
	case *p.n != *n:
		clashed(clash{field, p.by, a, *p.n, *n})
	}
}

func (p pick) value() uint32 {
	if p.n == nil {
		return 0
	}
	return *p.n
}

func (p pick) metric() bgp.Metric { return bgp.Metric{Set: p.n != nil, Value: p.value()} }

// A clash is a number on which two advertisements differ.
type clash struct {
	field         string
	winner, loser *cluster.Advertisement
	won, lost     uint32
}

func (c clash) of(prefix netip.Prefix, peers []string) remark {
	code, why := c.decision()
	return remark{code, fmt.Sprintf("BGPAdvertisement %s and %s give %s to %s different %s, %d and %d; %d counts, since %s",
		c.winner.Name, c.loser.Name, prefix, cluster.Enumerate(peers), c.field, c.won, c.lost, c.won, why)}
}

// decision says why the winner counts and the loser does not.
func (c clash) decision() (cluster.Code, string) {
	by, weight := specifics(c.winner)
	less, other := specifics(c.loser)
	if weight == other {
		return cluster.AttributeClash, c.winner.Name + " comes first by name"
	}
	i := slices.IndexFunc(by, func(f string) bool { return !slices.Contains(less, f) })
	return cluster.AttributeOverride, fmt.Sprintf("%s has %s and %s has not", c.winner.Name, by[i], c.loser.Name)
}

// communities translates.
func communities(c *cluster.Communities) bgp.Attributes {
	if c == nil {
		return bgp.Attributes{}
	}
	standard, large := make([]bgp.Community, len(c.Standard)), make([]bgp.LargeCommunity, len(c.Large))
	for i, n := range c.Standard {
		standard[i] = bgp.Community(n)
	}
	for i, n := range c.Large {
		large[i] = bgp.LargeCommunity{ASN: n[0], Local1: n[1], Local2: n[2]}
	}
	return bgp.Attributes{Communities: bgp.CommunitiesOf(standard...), LargeCommunities: bgp.LargeCommunitiesOf(large...)}
}

// withCommunities is a with the communities of b as well.
func withCommunities(a, b bgp.Attributes) bgp.Attributes {
	a.Communities = a.Communities.With(b.Communities)
	a.LargeCommunities = a.LargeCommunities.With(b.LargeCommunities)
	return a
}
