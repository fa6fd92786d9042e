package bgp

import (
	"context"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
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
