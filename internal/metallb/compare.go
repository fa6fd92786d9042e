package metallb

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A Comparison is what nodes announce before and after.
type Comparison struct {
	Before, After []Announcement // sorted
	// Lost are announced before only, and New after only. One with other attributes is in both.
	Lost, New []Announcement
	// Moves are the addresses of Layer 2 for which another node answers: each implementation
	// elects in its own way.
	Moves []string
	// Unheld are addresses that Services do not keep, a sentence each.
	Unheld []string
	// Problems are mistakes that Fanfare finds in the converted objects.
	Problems []cluster.Problem
	// Changed is how many are in Lost and in New, with other attributes.
	Changed int
	// NoNodes: without Node objects, nothing is announced, and nothing was compared.
	NoNodes bool
}

// Compare returns what differs between what MetalLB's speakers announce and Fanfare's. It shows
// mistakes of the conversion as well as differences between the programs: MetalLB's rules are written
// down here, and Fanfare's side is plan.Decide, by which its speakers announce.
func Compare(c *Cluster, out *Conversion, o Options) *Comparison {
	snap := out.snapshot(c, o)
	after, twins := out.planned(c, snap)
	d := &Comparison{
		Before: Announced(c, o), After: after, Problems: twins, Unheld: unheld(c, snap, o), NoNodes: len(c.Nodes) == 0,
	}
	for _, p := range snap.Problems {
		// A Problem with a Code is about what an object refers to, such as a selector that
		// matches no Node. That is the same with MetalLB.
		if !p.Warning && p.Code == "" && out.has(p.Object) {
			d.Problems = append(d.Problems, p)
		}
	}
	d.pair(c.answerers(o))
	return d
}

// pair finds for each announcement the one about the same thing on the other side. answerers are what MetalLB
// may do over Layer 2, where any of several nodes answers.
func (c *Comparison) pair(answerers map[Announcement]bool) {
	after := map[Announcement]Announcement{}
	for _, a := range c.After {
		after[a.key()] = a
	}
	for _, b := range c.Before {
		a, found := after[b.key()]
		delete(after, b.key())
		switch {
		case !found:
			c.Lost = append(c.Lost, b)
		// Over Layer 2, a node that MetalLB could not elect is a difference. Another one of its
		// candidates is a move.
		case a.Peer == "" && !answerers[a] || a.Peer != "" && a.With != b.With:
			c.Lost, c.New, c.Changed = append(c.Lost, b), append(c.New, a), c.Changed+1
		case a.Node != b.Node:
			c.Moves = append(c.Moves, fmt.Sprintf("%s from node %s to %s", a.Prefix.Addr(), b.Node, a.Node))
		}
	}
	for _, a := range after {
		c.New = append(c.New, a)
	}
	slices.SortFunc(c.New, compareAnnouncements)
}

// answerers are all announcements over Layer 2 that MetalLB may make: one for each address and each
// node that may answer for it, with the interfaces of that node.
func (c *Cluster) answerers(o Options) map[Announcement]bool {
	all := map[Announcement]bool{}
	for _, b := range c.balancers(o) {
		for _, n := range c.candidates(b) {
			for _, a := range c.answers(b, n) {
				all[a] = true
			}
		}
	}
	return all
}

// Differences is how many announcements and addresses differ. The move of an address over Layer 2 is none.
func (c *Comparison) Differences() int { return len(c.Lost) + len(c.New) - c.Changed + len(c.Unheld) }

// String returns the comparison as comments of YAML.
func (c *Comparison) String() string {
	text := comments("INVALID: Fanfare refuses these converted objects, or parts of them.", texts(c.Problems))
	if c.NoNodes {
		return text + "# COMPARISON: none, since there are no Nodes; give their objects, and those of Services " +
			"and EndpointSlices.\n"
	}
	text += fmt.Sprintf("# COMPARISON: %d announcements before, %d after, %d differences.\n", len(c.Before),
		len(c.After), c.Differences())
	for _, l := range slices.Concat(grouped("-", c.Lost), grouped("+", c.New)) {
		text += "# " + commented(l) + "\n"
	}
	for _, u := range c.Unheld {
		text += "# - " + commented(u) + "\n"
	}
	return text + comments("Layer 2: these addresses move to another node, since each implementation "+
		"elects in its own way.", c.Moves)
}

// grouped returns a line for each announcement, with all nodes that have it.
func grouped(sign string, list []Announcement) (lines []string) {
	nodes := map[string][]string{}
	for _, a := range list {
		nodes[a.String()] = append(nodes[a.String()], a.Node)
	}
	for _, t := range slices.Sorted(maps.Keys(nodes)) {
		lines = append(lines, fmt.Sprintf("%s %s: %s", sign, cluster.Enumerate(nodes[t]), t))
	}
	return lines
}
