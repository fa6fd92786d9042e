package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// usable are the endpoints of a port that may be given new flows. Those on nodes that
// are silent are left out, unless nothing is left without them: such a node may live
// after all, and nobody is helped by being sent nowhere. Missed says so, in words that
// end a sentence.
func (v *View) usable(all []cluster.Endpoint, notReady bool) (use []cluster.Endpoint, missed string) {
	use = usable(all, notReady)
	if len(v.silent) == 0 {
		return use, ""
	}
	there := func(e *cluster.Endpoint) bool { return !v.IsSilent(e.Node) }
	out := filter(use, func(e *cluster.Endpoint) bool { return !there(e) })
	if len(out) == 0 {
		return use, ""
	}
	if rest := usable(filter(all, there), notReady); len(rest) > 0 {
		return rest, v.silence(out) + "; what is there is left out"
	}
	return use, v.silence(out) + "; what is there is used all the same, since there is nothing else"
}

// IsSilent says whether the endpoints of a node are left out.
func (v *View) IsSilent(node string) bool {
	_, silent := v.silent[node]
	return silent
}

// silence says since when nothing has been heard of the nodes of endpoints.
func (v *View) silence(of []cluster.Endpoint) string {
	var names []string
	for _, e := range of {
		names = append(names, fmt.Sprintf("node %s has not been heard of since %s", e.Node, v.silent[e.Node].UTC().Format(time.RFC3339)))
	}
	slices.Sort(names)
	return cluster.Enumerate(slices.Compact(names))
}

// WhyLeftOut says why the endpoints of a node that is dead for some time are left out now.
func (v *View) WhyLeftOut(node string) string {
	if m, _ := v.Members.Find(node); m.Absent && v.Members.Halved(v.Node) {
		return "its Lease is not renewed either, while that of this node is"
	}
	return "more than half of the nodes are heard of again"
}
