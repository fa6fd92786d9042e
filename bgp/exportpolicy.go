package bgp

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A route for some routers only carries, inside of GoBGP, a large community for each of them. The
// export policy sends the route to these routers only, without the communities, also on sessions
// that open later. The meaning of a community never changes, so GoBGP never has to evaluate the
// policy again for routes that it has sent. No router sees these communities, and no router can
// send one: AS 4294967295 is reserved (RFC 7300).
const (
	markASN = 4294967295
	// markAny is on each such route, even if its routers no longer exist.
	markAny = 0
	// markPolicyVersion replaces a router's number in marks: see marking.
	markPolicyVersion = 4294967295

	selectedPolicy, restrictedPolicy = "selected", "restricted"
	// markedSet matches the mark markAny, everyMarkSet all marks.
	markedSet, everyMarkSet = "marked", "every mark"
)

func mark(n uint32) string { return fmt.Sprintf("%d:0:%d", uint32(markASN), n) }

// everyMark matches all marks, and nothing else.
var everyMark = fmt.Sprintf("^%d:.*$", uint32(markASN))

func stripMarks() *api.CommunityAction {
	return &api.CommunityAction{Type: api.CommunityAction_TYPE_REMOVE, Communities: []string{everyMark}}
}

// marks returns the marks of a route; targets has the routers' numbers by session.
func (p Peers) marks(targets map[string]uint32) []*packet.LargeCommunity {
	if p == "" {
		return nil
	}
	values := []*packet.LargeCommunity{{ASN: markASN, LocalData2: markAny}}
	for _, name := range p.Names() {
		if n, ok := targets[name]; ok {
			values = append(values, &packet.LargeCommunity{ASN: markASN, LocalData2: n})
		}
	}
	return values
}

// selectionPolicies select the routers that get a route. They are the last export policies. The
// first begins without statements: targets adds one for each router.
func selectionPolicies() []*api.Policy {
	return []*api.Policy{
		policy(selectedPolicy),
		policy(restrictedPolicy, &api.Statement{
			Name:       restrictedPolicy,
			Conditions: &api.Conditions{LargeCommunitySet: anyOf(markedSet)},
			Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT},
		}),
		policy(stripPolicy, stripStatement()),
	}
}

// targets numbers the routers of sessions. A number belongs to an address, not to a session: a
// session may change its address, and another session may get the old one.
func (e *engine) targets(ctx context.Context, sessions []Session) (map[string]uint32, error) {
	targets := make(map[string]uint32, len(sessions))
	for _, s := range sessions {
		router := e.neighborAddr(s)
		n, ok := e.numbers[router]
		if !ok {
			n = uint32(len(e.numbers)) + 1
			if err := e.target(ctx, router, n); err != nil {
				return nil, fmt.Errorf("session %s: GoBGP's policy: %w", s.Name, err)
			}
			e.numbers[router] = n
		}
		targets[s.Name] = n
	}
	return targets, nil
}

func routerName(n uint32) string { return fmt.Sprintf("router %d", n) }

// target allows routes that are marked with n to a router.
func (e *engine) target(ctx context.Context, router netip.Addr, n uint32) error {
	name := routerName(n)
	if err := e.define(ctx, neighborSet(name, router), largeCommunitySet(name, "^"+mark(n)+"$")); err != nil {
		return err
	}
	return e.gobgp.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy(selectedPolicy, &api.Statement{
		Name:       name,
		Conditions: &api.Conditions{NeighborSet: anyOf(name), LargeCommunitySet: anyOf(name)},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT, LargeCommunity: stripMarks()},
	})})
}

// stripStatement removes the marks from routes to all routers. Routes to some routers have lost
// them already.
func stripStatement() *api.Statement {
	return &api.Statement{
		Name:       stripPolicy,
		Conditions: &api.Conditions{LargeCommunitySet: anyOf(everyMarkSet)},
		Actions:    &api.Actions{LargeCommunity: stripMarks()},
	}
}

// exportPolicies are the export policies in their order, with or without that of a graceful shutdown.
func exportPolicies(shutdown bool) []*api.Policy {
	policies := []*api.Policy{policy(exportPolicy, exportStatements()...), policy(attributesPolicy)}
	if shutdown {
		policies = append(policies, policy(shutdownPolicy, shutdownStatement()))
	}
	return append(policies, selectionPolicies()...)
}

// exportStatements reject routes that have no next hop on a session. When GoBGP evaluates them, the
// route already has the session's stand-in (nexthop.go).
func exportStatements() []*api.Statement {
	reject := func(name string, family *api.Family, placeholder netip.Addr) *api.Statement {
		return &api.Statement{
			Name:       name,
			Conditions: &api.Conditions{AfiSafiIn: []*api.Family{family}, NextHopInList: hostPrefixes(placeholder)},
			Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT},
		}
	}
	return []*api.Statement{
		stripBandwidth(),
		reject("no IPv6 next hop", apiFamily(packet.RF_IPv6_UC), only4),
		reject("no IPv4 next hop", apiFamily(packet.RF_IPv4_UC), only6),
	}
}

func shutdownStatement() *api.Statement {
	return &api.Statement{
		Name: shutdownPolicy,
		Actions: &api.Actions{
			Community: &api.CommunityAction{
				Type: api.CommunityAction_TYPE_ADD, Communities: []string{shutdownCommunity},
			},
			LocalPref: &api.LocalPrefAction{Value: shutdownPreference},
		},
	}
}
