package cluster

import (
	"fmt"
	"slices"
)

// references returns Problems for names and selectors in s that match nothing, and for pools that
// no advertisement selects. Each belongs to the object that contains it.
func references(s *Snapshot) []Problem {
	r := resolver{Snapshot: s, versions: make(map[Key]bool, len(s.Versions))}
	for _, v := range s.Versions {
		r.versions[v.Object()] = true
	}
	for _, a := range s.Advertisements {
		object := Named("BGPAdvertisement", a.Name)
		r.pools(object, a.Pools)
		r.peers(object, a.Peers)
		r.nodes(object, "spec.nodeSelector", a.NodeSelector, false)
	}
	for _, a := range s.L2Advertisements {
		object := Named("L2Advertisement", a.Name)
		r.pools(object, a.Pools)
		r.nodes(object, "spec.nodeSelector", a.NodeSelector, false)
		for i, p := range a.Preferred {
			r.nodes(object, fmt.Sprintf("spec.preferredNodeSelectors[%d].preference", i), p.Selector, true)
		}
	}
	for _, p := range s.Peers {
		r.nodes(Named("BGPPeer", p.Name), "spec.nodeSelector", p.NodeSelector, true)
	}
	for _, p := range s.Pools {
		r.advertised(p)
	}
	return r.problems
}

// A resolver looks up what objects refer to.
type resolver struct {
	*Snapshot
	versions map[Key]bool // the objects that exist, used or not
	problems []Problem
}

func (r *resolver) add(p Problem) { r.problems = append(r.problems, p) }

// pools checks the pools that an advertisement names; an advertisement without names selects all.
func (r *resolver) pools(object Key, names []string) {
	advertised := func(p *Pool) bool { return p.Announce == AnnounceAdvertised }
	if len(names) == 0 && len(r.Pools) != 0 && !slices.ContainsFunc(r.Pools, advertised) {
		r.add(Problem{
			Object: object, Field: "spec.pools",
			Message: "applies to no AddressPool: none has spec.announce Advertised; set it in one, or " +
				"delete the advertisement",
		})
	}
	for _, name := range names {
		switch p := r.pool(name); {
		case p == nil:
			r.missing(object, "spec.pools", "AddressPool", name)
		case !advertised(p):
			r.add(Problem{Object: object, Field: "spec.pools", Value: name,
				Message: fmt.Sprintf("does not apply to this AddressPool, whose spec.announce is %s; set that to "+
					"Advertised, or remove the pool here", p.Announce)})
		}
	}
}

func (r *resolver) peers(object Key, names []string) {
	for _, name := range names {
		if !slices.ContainsFunc(r.Peers, func(p *Peer) bool { return p.Name == name }) {
			r.missing(object, "spec.peers", "BGPPeer", name)
		}
	}
}

// missing reports a name without an object, or with an object that has a mistake.
func (r *resolver) missing(object Key, field, kind, name string) {
	message := fmt.Sprintf("there is no %s of this name", kind)
	if r.versions[Named(kind, name)] {
		message = fmt.Sprintf("this %s is not in use because of a mistake in it; correct it", kind)
	}
	r.add(Problem{Object: object, Field: field, Value: name, Message: message})
}

// nodes checks a selector against all Nodes, as far as they are known. A preference or a BGPPeer
// without a Node is only a warning: its Nodes may join later.
func (r *resolver) nodes(object Key, field string, selector Selector, warning bool) {
	if !r.AllNodes || len(r.Nodes) == 0 || r.selectsNode(selector) {
		return
	}
	r.add(Problem{Object: object, Field: field, Value: selector.String(), Code: NoNode, Warning: warning,
		Message: "matches no Node; set it to labels that a Node has"})
}

func (r *resolver) selectsNode(selector Selector) bool {
	return selector.Empty() || slices.ContainsFunc(r.Nodes, func(n *Node) bool { return selector.Matches(n.Labels) })
}

// advertised checks that some advertisement selects a pool that needs one.
func (r *resolver) advertised(p *Pool) {
	if p.Announce != AnnounceAdvertised ||
		slices.ContainsFunc(r.Advertisements, func(a *Advertisement) bool { return a.SelectsPool(p.Name) }) ||
		slices.ContainsFunc(r.L2Advertisements, func(a *L2Advertisement) bool { return a.SelectsPool(p.Name) }) {
		return
	}
	r.add(Problem{Object: Named("AddressPool", p.Name), Field: "spec.announce", Value: string(p.Announce),
		Code: NotAdvertised, Message: "no BGPAdvertisement or L2Advertisement selects this pool, so none of its " +
			"addresses is announced; " +
			"create one, or set spec.announce to BGP or L2"})
}
