package bgp

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// An AdvertisedRoute is a route as one router receives it: after GoBGP's export policy, as in the
// router's Adj-RIB-In (RFC 4271 §1.1).
type AdvertisedRoute struct {
	Prefix  netip.Prefix `json:"prefix"`
	NextHop netip.Addr   `json:"nextHop,omitzero"`
	ASPath  string       `json:"asPath,omitempty"`
	// LocalPref and MED are nil if the route has none.
	LocalPref *uint32 `json:"localPref,omitempty"`
	MED       *uint32 `json:"med,omitempty"`
	// Communities are sorted, because their order on the wire has no meaning.
	Communities         []string `json:"communities,omitempty"`
	LargeCommunities    []string `json:"largeCommunities,omitempty"`
	ExtendedCommunities []string `json:"extendedCommunities,omitempty"`
}

// Advertised returns all routes that a session's router has now, sorted by prefix; none while the
// session is down. It repeats GoBGP's computation for a new session, some 10 µs a route, and blocks
// GoBGP meanwhile. An unknown session is an error.
func (s *Server) Advertised(ctx context.Context, name string) ([]AdvertisedRoute, error) {
	s.mu.Lock()
	e, sessions := s.engine, s.sessions
	s.mu.Unlock()
	i := slices.IndexFunc(sessions, func(x *session) bool { return x.conf.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no session is called %q", name)
	}
	w, up := sessions[i].connection()
	if !up {
		return nil, nil
	}
	hops := w.hops() // GoBGP only has stand-ins
	var routes []AdvertisedRoute
	for _, f := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
		more, err := e.advertised(ctx, sessions[i].neighborAddr, f)
		if err != nil {
			return nil, fmt.Errorf("session %s: GoBGP's %s routes: %w", name, f, err)
		}
		routes = append(routes, more...)
	}
	for i := range routes {
		routes[i].NextHop = hops.of(routes[i].Prefix)
	}
	slices.SortFunc(routes, func(a, b AdvertisedRoute) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return routes, nil
}

func (e *engine) advertised(ctx context.Context, router netip.Addr,
	f packet.Family) (routes []AdvertisedRoute, err error) {
	request := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_ADJ_OUT, Name: router.String(), Family: f}
	err = e.gobgp.ListPath(request, func(_ packet.NLRI, paths []*apiutil.Path) {
		for _, p := range paths {
			routes = append(routes, advertisedRoute(p))
		}
	})
	if err != nil {
		return nil, err
	}
	// ListPath reads paths outside of GoBGP's loop. GetBgp waits for the loop, so that GoBGP
	// changes them only after these reads.
	_, err = e.gobgp.GetBgp(ctx, &api.GetBgpRequest{})
	return routes, err
}

func advertisedRoute(p *apiutil.Path) (r AdvertisedRoute) {
	if nlri, ok := p.Nlri.(*packet.IPAddrPrefix); ok {
		r.Prefix = nlri.Prefix
	}
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *packet.PathAttributeAsPath:
			r.ASPath = packet.AsPathString(a)
		case *packet.PathAttributeLocalPref:
			r.LocalPref = &a.Value
		case *packet.PathAttributeMultiExitDisc:
			r.MED = &a.Value
		case *packet.PathAttributeCommunities:
			for _, c := range slices.Sorted(slices.Values(a.Value)) {
				r.Communities = append(r.Communities, Community(c).String())
			}
		case *packet.PathAttributeLargeCommunities:
			for _, c := range slices.SortedFunc(slices.Values(a.Values), compareLarge) {
				r.LargeCommunities = append(r.LargeCommunities, c.String())
			}
		case *packet.PathAttributeExtendedCommunities:
			for _, c := range a.Value {
				r.ExtendedCommunities = append(r.ExtendedCommunities, extendedCommunity(c))
			}
		}
	}
	return r
}

func compareLarge(a, b *packet.LargeCommunity) int {
	return cmp.Or(cmp.Compare(a.ASN, b.ASN), cmp.Compare(a.LocalData1, b.LocalData1),
		cmp.Compare(a.LocalData2, b.LocalData2))
}

// extendedCommunity adds the kind of the community, which GoBGP's text omits.
func extendedCommunity(c packet.ExtendedCommunityInterface) string {
	if _, ok := c.(*packet.LinkBandwidthExtended); ok {
		return "bandwidth:" + c.String()
	}
	return c.String()
}

// AllCommunities returns the communities of all kinds, as a router's configuration writes them.
func (r AdvertisedRoute) AllCommunities() string {
	return strings.Join(slices.Concat(r.Communities, r.LargeCommunities, r.ExtendedCommunities), " ")
}
