package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// adverts keeps the status of BGPAdvertisements and L2Advertisements. Only a controller sees all
// nodes, so only it can detect a misspelt selector or interface.
type adverts struct {
	client *client
	statuses[v1alpha1.AdvertisementStatus]
	seen cluster.Snapshot // the parts whose statuses are all written
}

// report writes the statuses that have changed, unless it is too early.
func (a *adverts) report(ctx context.Context, snap *cluster.Snapshot) []error {
	now := advertParts(snap)
	if sameAdvertParts(&now, &a.seen) {
		a.due = false
		return nil
	}
	if a.early() {
		return nil
	}
	errs := a.change(snap.Versions, func(v cluster.Version) (v1alpha1.AdvertisementStatus, bool) {
		return advertStatus(snap, v)
	},
		func(v cluster.Version, want v1alpha1.AdvertisementStatus) error { return a.write(ctx, v, want) })
	if len(errs) == 0 {
		a.seen = now
	}
	return errs
}

// advertParts returns the parts of a snapshot that statuses depend on. Most snapshots differ from
// the previous one only in Services, and there may be thousands of nodes.
func advertParts(s *cluster.Snapshot) cluster.Snapshot {
	return cluster.Snapshot{Versions: s.Versions, Problems: s.Problems, Nodes: s.Nodes, AllNodes: s.AllNodes,
		Pools: s.Pools, Peers: s.Peers, Advertisements: s.Advertisements, L2Advertisements: s.L2Advertisements,
		L2Ready: s.L2Ready, Speakers: s.Speakers}
}

// sameAdvertParts compares pointers and slice headers, not contents: it is called for each change.
func sameAdvertParts(a, b *cluster.Snapshot) bool {
	return a.AllNodes == b.AllNodes && a.L2Ready == b.L2Ready && sortedset.Same(a.Versions, b.Versions) &&
		sortedset.Same(a.Problems, b.Problems) && sortedset.Same(a.Nodes, b.Nodes) &&
		sortedset.Same(a.Pools, b.Pools) && sortedset.Same(a.Peers, b.Peers) &&
		sortedset.Same(a.Speakers, b.Speakers) &&
		sortedset.Same(a.Advertisements, b.Advertisements) && sortedset.Same(a.L2Advertisements, b.L2Advertisements)
}

// write writes a status unless the object has it already. An object that was deleted meanwhile is
// no error.
func (a *adverts) write(ctx context.Context, v cluster.Version, want v1alpha1.AdvertisementStatus) error {
	live, err := a.client.advertisementStatus(ctx, v)
	if err == nil && !apartFromTimes.DeepEqual(live, want) {
		keepTime(live.Conditions, want.Conditions)
		err = a.client.setStatus(ctx, advertisementResource(v), v.Name, want)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// advertStatus returns the wanted status of an advertisement; ok is false for other objects, and
// until the Nodes are read. An advertisement that was never valid reaches no node.
func advertStatus(snap *cluster.Snapshot, v cluster.Version) (s v1alpha1.AdvertisementStatus, known bool) {
	var r reach
	switch v.Kind {
	case "BGPAdvertisement":
		i := slices.IndexFunc(snap.Advertisements, func(a *cluster.Advertisement) bool { return a.Name == v.Name })
		if i >= 0 && !snap.AllNodes {
			return s, false
		}
		if i >= 0 {
			r = reachBGP(snap, snap.Advertisements[i])
		}
	case "L2Advertisement":
		i := slices.IndexFunc(snap.L2Advertisements, func(a *cluster.L2Advertisement) bool { return a.Name == v.Name })
		if i >= 0 && !snap.L2Ready {
			return s, false
		}
		if i >= 0 {
			r = reachL2(snap, snap.L2Advertisements[i])
		}
	default:
		return s, false
	}
	c := advertReady(r, diagnose(snap.Problems, v.Object()))
	c.ObservedGeneration = v.Generation
	return v1alpha1.AdvertisementStatus{Nodes: int32(r.nodes), Conditions: []metav1.Condition{c}}, true
}

// A reach is the set of nodes that can announce an advertisement.
type reach struct {
	nodes   int
	reason  string // why there are none, with why; empty if there are, or if a Problem explains it
	why     string
	remarks []string
}

// advertReady returns the condition. Any Problem but a warning makes it False although nodes may
// announce the rest: such a mistake is nearly always a typo, and the part that it concerns is not
// announced.
func advertReady(r reach, d diagnosis) metav1.Condition {
	c := metav1.Condition{Type: ready, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now()}
	var parts []string
	switch {
	case len(d.wrong) != 0:
		c.Reason, parts = d.reason, d.wrong
	case r.reason != "":
		c.Reason, parts = r.reason, []string{r.why}
	default:
		c.Status, c.Reason, parts = metav1.ConditionTrue, reasonReady,
			append([]string{"nodes can announce"}, r.remarks...)
		if len(d.warnings) != 0 {
			c.Reason = reasonWarning
		}
	}
	c.Message = cut(strings.Join(append(slices.Clip(parts), d.warnings...), "; "))
	return c
}

// reachBGP counts the nodes that the advertisement selects and that have a session with one of its
// routers.
func reachBGP(snap *cluster.Snapshot, a *cluster.Advertisement) (r reach) {
	peers := slices.DeleteFunc(slices.Clone(snap.Peers),
		func(p *cluster.Peer) bool { return len(a.Peers) != 0 && !slices.Contains(a.Peers, p.Name) })
	selected := 0
	for _, n := range snap.Nodes {
		if !a.NodeSelector.Matches(n.Labels) {
			continue
		}
		selected++
		if slices.ContainsFunc(peers, func(p *cluster.Peer) bool { return p.NodeSelector.Matches(n.Labels) }) {
			r.nodes++
		}
	}
	r.remarks = unapplied(snap, a.Pools)
	switch {
	case len(snap.Peers) == 0:
		r.reason, r.why = reasonNoPeer, "there is no BGPPeer; create one"
	case selected == 0:
		r.reason, r.why = string(cluster.NoNode), "there is no Node"
	case r.nodes == 0:
		r.reason, r.why = reasonNoPeer, fmt.Sprintf(
			"none of the %d selected nodes is selected by a BGPPeer of the advertisement; compare the nodeSelectors",
			selected)
	}
	return r
}

// unapplied names the pools that an advertisement for all pools does not apply to.
func unapplied(snap *cluster.Snapshot, names []string) (remarks []string) {
	var others []string
	for _, p := range snap.Pools {
		if len(names) == 0 && p.Announce != cluster.AnnounceAdvertised {
			others = append(others, fmt.Sprintf("%s (%s)", p.Name, p.Announce))
		}
	}
	if len(others) != 0 {
		remarks = append(remarks, "does not apply to AddressPools whose spec.announce is not Advertised: "+
			cluster.Enumerate(others))
	}
	return remarks
}

// reachL2 counts the nodes that can answer for addresses by l, and returns the first reason if none
// can.
func reachL2(snap *cluster.Snapshot, l *cluster.L2Advertisement) reach {
	c := cover(snap, l)
	r := reach{nodes: c.able, remarks: append(c.remarks(l), unapplied(snap, l.Pools)...)}
	switch {
	case c.selected == 0:
		r.reason, r.why = string(cluster.NoNode), "there is no Node"
	case c.heard == 0:
		r.reason, r.why = reasonNoSpeaker, fmt.Sprintf(
			"no speaker of the %d selected nodes has reported its interfaces yet", c.selected)
	case c.able == 0 && len(l.Interfaces) == 0:
		r.reason, r.why = reasonNoInterface, "no selected node has an interface in a subnet that "+
			"has addresses of a pool"
	case c.able == 0:
		r.reason, r.why = reasonNoInterface, "no selected node has one of its interfaces: "+c.missing()
	}
	return r
}

// A coverage is the set of nodes that an L2Advertisement reaches.
type coverage struct {
	selected, heard, able int             // nodes
	unmet                 map[string]bool // interfaces that no selected node has, as the object names them
	order                 []string        // of interfaces
	preferred, anywhere   []int           // for each preference, how many selected nodes and how many nodes it matches
}

// cover evaluates the selectors of l on all Nodes, and its interfaces on what speakers report.
func cover(snap *cluster.Snapshot, l *cluster.L2Advertisement) coverage {
	r := coverage{
		unmet: map[string]bool{}, order: l.Interfaces, preferred: make([]int, len(l.Preferred)),
		anywhere: make([]int, len(l.Preferred)),
	}
	for _, name := range l.Interfaces {
		r.unmet[name] = true
	}
	for _, n := range snap.Nodes {
		selected := l.NodeSelector.Matches(n.Labels)
		for i, p := range l.Preferred {
			if p.Selector.Matches(n.Labels) {
				r.anywhere[i]++
				if selected {
					r.preferred[i]++
				}
			}
		}
		if !selected {
			continue
		}
		r.selected++
		if s := snap.Speaker(n.Name); s != nil && len(s.Interfaces) != 0 {
			r.heard++
			r.count(l, s)
		}
	}
	return r
}

// count adds a node whose speaker has reported its interfaces.
func (c *coverage) count(l *cluster.L2Advertisement, s *cluster.Speaker) {
	able := false
	for _, i := range s.Interfaces {
		ok, _ := l.Allows(i.Name)
		able = able || ok
		for name := range c.unmet {
			one := cluster.L2Advertisement{Interfaces: []string{name}}
			if is, _ := one.Allows(i.Name); is {
				delete(c.unmet, name)
			}
		}
	}
	if able {
		c.able++
	}
}

// missing lists the interfaces that no selected node has. Speakers report interfaces that
// match a pattern only where they are in a subnet of a pool.
func (c *coverage) missing() string {
	var list []string
	for _, name := range c.order {
		if !c.unmet[name] {
			continue
		}
		if strings.ContainsAny(name, "*?") {
			name += " (in a subnet that has addresses of a pool)"
		}
		list = append(list, name)
	}
	return strings.Join(list, ", ")
}

// remarks returns possible mistakes, although some node can answer.
func (c *coverage) remarks(l *cluster.L2Advertisement) (list []string) {
	if missing := c.missing(); missing != "" {
		list = append(list, "no selected node has an interface "+missing)
	}
	for i, n := range c.preferred {
		if n == 0 && c.anywhere[i] != 0 { // otherwise it is a Problem
			list = append(list, fmt.Sprintf("preferredNodeSelectors[%d], %s, matches none of the %d selected nodes", i,
				l.Preferred[i].Selector, c.selected))
		}
	}
	return list
}
