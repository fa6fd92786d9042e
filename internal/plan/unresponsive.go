package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// usable returns the endpoints of a port that may get new flows. Endpoints on unresponsive nodes are
// left out unless no others exist. The text says so, as the end of a sentence.
func (v *View) usable(all []cluster.Endpoint, notReady bool) (use []cluster.Endpoint, text string) {
	use = cluster.UsableEndpoints(all, notReady)
	if len(v.unresponsive) == 0 {
		return use, ""
	}
	unresponsive := cluster.FilterEndpoints(use, func(e *cluster.Endpoint) bool { return v.IsUnresponsive(e.Node) })
	if len(unresponsive) == 0 {
		return use, ""
	}
	responds := func(node string) bool { return !v.IsUnresponsive(node) }
	use, others := cluster.UsableOn(responds, all, notReady)
	if others {
		return use, v.unresponsiveText(unresponsive) + "; endpoints there are left out"
	}
	return use, v.unresponsiveText(unresponsive) + "; endpoints there are used, since no others exist"
}

// IsUnresponsive reports whether the endpoints of a node are left out.
func (v *View) IsUnresponsive(node string) bool {
	_, unresponsive := v.unresponsive[node]
	return unresponsive
}

// unresponsiveDiffer reports whether endpoints of other nodes are left out than in another View.
func (v *View) unresponsiveDiffer(o *View) bool {
	if len(v.unresponsive) != len(o.unresponsive) {
		return true
	}
	for node := range v.unresponsive {
		if !o.IsUnresponsive(node) {
			return true
		}
	}
	return false
}

// unresponsiveConcern reports whether an address has an endpoint on a node whose responsiveness differs from
// that in another View.
func (v *View) unresponsiveConcern(a *Address, o *View) bool {
	return slices.ContainsFunc(a.services, func(s cluster.Service) bool {
		return s.Endpoints.Any(func(e *cluster.Endpoint) bool { return v.IsUnresponsive(e.Node) != o.IsUnresponsive(e.Node) })
	})
}

// unresponsiveText says since when the nodes of endpoints do not respond.
func (v *View) unresponsiveText(of []cluster.Endpoint) string {
	var names []string
	for _, e := range of {
		names = append(names, fmt.Sprintf("node %s has not responded since %s", e.Node, v.unresponsive[e.Node].UTC().Format(time.RFC3339)))
	}
	slices.Sort(names)
	return cluster.Enumerate(slices.Compact(names))
}

// WhyLeftOut explains why the endpoints of a node that died earlier are left out now.
func (v *View) WhyLeftOut(node string) string {
	if m, _ := v.Members.Find(node); m.Absent && v.Members.Halved(v.Node) {
		return "its Lease is not renewed either, while that of this node is"
	}
	return "more than half of the nodes respond again"
}
