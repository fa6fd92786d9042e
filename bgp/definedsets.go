package bgp

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// GoBGP's table has the attributes that are equal for all routers. For others, such as the AS path,
// which depends on the session, a route has marks (see exportpolicy.go):
// each mark stands for a set of attributes, for one router or all. The export policy has a
// statement for each mark that any route has. There are few: differences between routers come from
// BGPAdvertisements, not from Services.
const (
	attributesPolicy = "attributes"
	stripPolicy      = "strip"

	// allRouters replaces a router's number in marks.
	allRouters = 0
	// leastSets is the number of sets below which forget looks for no unused ones.
	leastSets = 64
)

// An attributeSet is a set of attributes for one router, or for all.
type attributeSet struct {
	attributes Attributes
	router     uint32
}

func (k attributeSet) mark(set uint32) *packet.LargeCommunity {
	return &packet.LargeCommunity{ASN: markASN, LocalData1: set, LocalData2: k.router}
}

// keys returns the sets that routes with p are marked with.
func (p PeerAttributes) keys(rest []group, targets map[string]uint32) (keys []attributeSet) {
	for _, g := range rest {
		if g.peers == "" {
			keys = append(keys, attributeSet{g.attributes, allRouters})
			continue
		}
		for _, name := range g.peers.Names() {
			if n, ok := targets[name]; ok {
				keys = append(keys, attributeSet{g.attributes, n})
			}
		}
	}
	return keys
}

// ensureSets adds missing statements for keys to GoBGP, and returns their marks.
func (e *engine) ensureSets(ctx context.Context, keys []attributeSet) (marks []*packet.LargeCommunity, err error) {
	for _, k := range keys {
		n, ok := e.sets[k]
		if !ok {
			n = e.lastSet + 1
			if err := e.addSet(ctx, k, n); err != nil {
				return nil, fmt.Errorf("GoBGP's policy: %s: %w", k.attributes, err)
			}
			e.sets[k], e.lastSet = n, n
		}
		marks = append(marks, k.mark(n))
	}
	return marks, nil
}

func setName(n uint32) string { return fmt.Sprintf("set %d", n) }

// addSet adds the statement for set n.
func (e *engine) addSet(ctx context.Context, k attributeSet, n uint32) error {
	if err := e.define(ctx, largeCommunitySet(setName(n), "^"+k.mark(n).String()+"$")); err != nil {
		return err
	}
	conditions := &api.Conditions{LargeCommunitySet: anyOf(setName(n))}
	if k.router != allRouters {
		conditions.NeighborSet = anyOf(routerName(k.router))
	}
	return e.gobgp.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy(attributesPolicy,
		&api.Statement{Name: setName(n), Conditions: conditions, Actions: k.attributes.actions()})})
}

// actions returns the policy actions that add a to a route. UseLeftMost repeats the session's own
// AS number, which GoBGP has put there. iBGP routers get an empty path, so nothing is repeated.
func (a Attributes) actions() *api.Actions {
	actions := &api.Actions{}
	if a.Communities != "" {
		actions.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD}
		for c := range a.Communities.All() {
			actions.Community.Communities = append(actions.Community.Communities, c.number())
		}
	}
	if a.LargeCommunities != "" {
		actions.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD}
		for c := range a.LargeCommunities.All() {
			actions.LargeCommunity.Communities = append(actions.LargeCommunity.Communities, c.String())
		}
	}
	if a.LocalPref.Set {
		actions.LocalPref = &api.LocalPrefAction{Value: a.LocalPref.Value}
	}
	if a.MED.Set {
		actions.Med = &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: int64(a.MED.Value)}
	}
	if a.Prepend > 0 {
		actions.AsPrepend = &api.AsPrependAction{UseLeftMost: true, Repeat: uint32(a.Prepend)}
	}
	return actions
}

// forget removes sets from GoBGP that no route in its table uses. It walks the table, so it runs
// only when there are twice as many sets as were in use.
func (e *engine) forget(ctx context.Context, table Routes, targets map[string]uint32) error {
	if len(e.sets) < e.manySets {
		return nil
	}
	used := map[attributeSet]bool{}
	seen := map[PeerAttributes]bool{}
	for r := range table.All() {
		if seen[r.Attributes] {
			continue
		}
		seen[r.Attributes] = true
		_, rest := r.Attributes.split()
		for _, k := range r.Attributes.keys(rest, targets) {
			used[k] = true
		}
	}
	e.manySets = max(leastSets, 2*len(used))
	for _, k := range slices.Collect(maps.Keys(e.sets)) {
		if used[k] {
			continue
		}
		if err := e.removeSet(ctx, e.sets[k]); err != nil {
			return fmt.Errorf("GoBGP's policy: %s: %w", k.attributes, err)
		}
		delete(e.sets, k)
	}
	return nil
}

func (e *engine) removeSet(ctx context.Context, n uint32) error {
	statement := &api.Statement{Name: setName(n)}
	if err := e.gobgp.DeletePolicy(ctx, &api.DeletePolicyRequest{Policy: policy(attributesPolicy, statement)}); err !=
		nil {
		return err
	}
	// DeletePolicy removes the statement from the policy, but GoBGP keeps it.
	if err := e.gobgp.DeleteStatement(ctx, &api.DeleteStatementRequest{Statement: statement, All: true}); err != nil {
		return err
	}
	return e.gobgp.DeleteDefinedSet(ctx, &api.DeleteDefinedSetRequest{
		All: true, DefinedSet: largeCommunitySet(setName(n)),
	})
}

// pathAttributes returns the attributes a for GoBGP's table. Routes share them.
func (a Attributes) pathAttributes(marks []*packet.LargeCommunity) (attrs []packet.PathAttributeInterface) {
	if a.MED.Set {
		attrs = append(attrs, packet.NewPathAttributeMultiExitDisc(a.MED.Value))
	}
	if a.LocalPref.Set {
		attrs = append(attrs, packet.NewPathAttributeLocalPref(a.LocalPref.Value))
	}
	var communities []uint32
	for c := range a.Communities.All() {
		communities = append(communities, uint32(c))
	}
	if len(communities) > 0 {
		attrs = append(attrs, packet.NewPathAttributeCommunities(communities))
	}
	var large []*packet.LargeCommunity
	for c := range a.LargeCommunities.All() {
		large = append(large, &packet.LargeCommunity{ASN: c.ASN, LocalData1: c.Local1, LocalData2: c.Local2})
	}
	if large = append(large, marks...); len(large) > 0 {
		// The policy of GoBGP appends to the slice.
		attrs = append(attrs, packet.NewPathAttributeLargeCommunities(slices.Clip(large)))
	}
	return attrs
}
