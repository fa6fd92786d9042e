package bgp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A route that is not for all routers carries, inside of GoBGP, a large community
// for each router that gets it. The export policy sends it to these only, without
// the communities, also on sessions that open later.
// The meaning of a community never changes, so that the policy never has to be evaluated
// again for routes that were sent. No router sees these communities, and none could announce
// one: AS 4294967295 is reserved (RFC 7300).
const (
	markASN = 4294967295
	// markAny is on each such route, also on one whose routers are all gone.
	markAny = 0
	// markPolicyVersion is in marks in the place of a router's number: see marking.
	markPolicyVersion = 4294967295

	selectedPolicy, restrictedPolicy = "selected", "restricted"
	// markedSet has the mark markAny, everyMarkSet all that there are.
	markedSet, everyMarkSet = "marked", "every mark"
)

// Peers is a set of sessions, by name: sorted and joined by commas, which the
// names of sessions do not have in them, so that Routes can be compared. Empty: all.
type Peers string

// PeersOf makes a set of names.
func PeersOf(names ...string) Peers {
	names = slices.Clone(names)
	slices.Sort(names)
	return Peers(strings.Join(slices.Compact(names), ","))
}

// Has reports whether a session is in the set.
func (p Peers) Has(name string) bool {
	return p == "" || slices.Contains(p.Names(), name)
}

// Names are the sessions of a set that is not all.
func (p Peers) Names() []string { return strings.Split(string(p), ",") }

func (p Peers) String() string { return strings.ReplaceAll(string(p), ",", ", ") }

func mark(n uint32) string { return fmt.Sprintf("%d:0:%d", uint32(markASN), n) }

// everyMark is what all marks, and nothing else, match.
var everyMark = fmt.Sprintf("^%d:.*$", uint32(markASN))

func stripMarks() *api.CommunityAction {
	return &api.CommunityAction{Type: api.CommunityAction_TYPE_REMOVE, Communities: []string{everyMark}}
}

// marks are what a route carries; targets are the routers' numbers by session.
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

// selectionPolicies select the routers that get a route. They are the last export policies. The first
// has no statement at first: targets adds one for each router.
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

// neighborAddr is the address that GoBGP has for the router of a session. It is the router's own, but
// in two cases: GoBGP's policy cannot distinguish equal link-local addresses on several links, and
// a router on an interface has no address before it advertises itself. Such a router gets an address of
// RFC 6666 and keeps it. Only Set may call neighborAddr.
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

// targets numbers the routers of sessions. A number is an address's, not a
// session's: a session may get another address, and its old one be another's.
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

// target lets routes that are marked with n out to a router.
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
