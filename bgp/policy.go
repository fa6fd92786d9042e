package bgp

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// policy returns a GoBGP policy with a name and statements.
func policy(name string, statements ...*api.Statement) *api.Policy {
	return &api.Policy{Name: name, Statements: statements}
}

// anyOf is a condition: a route, or its router, is in a defined set.
func anyOf(set string) *api.MatchSet { return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set} }

// largeCommunitySet is a defined set of all communities that match a regular expression.
func largeCommunitySet(name string, patterns ...string) *api.DefinedSet {
	return &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY, Name: name, List: patterns}
}

func neighborSet(name string, routers ...netip.Addr) *api.DefinedSet {
	return &api.DefinedSet{
		DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: name, List: hostPrefixes(routers...),
	}
}

// hostPrefixes writes addresses as GoBGP's policies need them.
func hostPrefixes(addrs ...netip.Addr) (list []string) {
	for _, a := range addrs {
		list = append(list, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return list
}

// define adds sets that statements can refer to. It replaces a set that an interrupted call has
// left.
func (e *engine) define(ctx context.Context, sets ...*api.DefinedSet) error {
	for _, set := range sets {
		if err := e.gobgp.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: set, Replace: true}); err != nil {
			return err
		}
	}
	return nil
}

// assign makes policies the ordered policies of a direction.
func (e *engine) assign(ctx context.Context, direction api.PolicyDirection, otherwise api.RouteAction,
	policies []*api.Policy) error {
	return e.gobgp.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: direction, Policies: policies, DefaultAction: otherwise,
	}})
}

func apiFamily(f packet.Family) *api.Family {
	return &api.Family{Afi: api.Family_Afi(f.Afi()), Safi: api.Family_Safi(f.Safi())}
}

// neighborAddr returns the address by which GoBGP knows the router of a session: the router's own,
// with two exceptions. GoBGP's policies cannot distinguish equal link-local addresses on several
// links, and a router on an interface has no address before it advertises itself. Such a router
// gets an address of RFC 6666 and keeps it. Only Set may call neighborAddr.
func (e *engine) neighborAddr(s Session) netip.Addr {
	if s.Interface == "" && s.PeerAddress.Zone() == "" {
		return s.PeerAddress
	}
	a, ok := e.neighborAddrs[s.routerText()]
	if !ok {
		bytes := netip.MustParseAddr("100::1:0:0").As16()
		binary.BigEndian.PutUint32(bytes[12:], uint32(len(e.neighborAddrs)))
		a = netip.AddrFrom16(bytes)
		e.neighborAddrs[s.routerText()] = a
	}
	return a
}
