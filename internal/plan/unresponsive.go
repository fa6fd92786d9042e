package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// unresponsive are the nodes whose endpoints are left out, and since when they do not respond.
type unresponsive map[string]time.Time

// usable returns the endpoints of a port that may get new flows. Endpoints on unresponsive nodes are
// left out unless no others exist. The text says so, as the end of a sentence.
func (u unresponsive) usable(all []cluster.Endpoint, notReady bool) (use []cluster.Endpoint, text string) {
	use = cluster.UsableEndpoints(all, notReady)
	if len(u) == 0 {
		return use, ""
	}
	silent := cluster.FilterEndpoints(use, func(e *cluster.Endpoint) bool { return u.has(e.Node) })
	if len(silent) == 0 {
		return use, ""
	}
	responds := func(node string) bool { return !u.has(node) }
	use, others := cluster.UsableOn(responds, all, notReady)
	if others {
		return use, u.text(silent) + "; endpoints there are left out"
	}
	return use, u.text(silent) + "; endpoints there are used, since no others exist"
}

func (u unresponsive) has(node string) bool {
	_, is := u[node]
	return is
}

// differ reports whether these are other nodes.
func (u unresponsive) differ(o unresponsive) bool {
	if len(u) != len(o) {
		return true
	}
	for node := range u {
		if !o.has(node) {
			return true
		}
	}
	return false
}

// concern reports whether an address has an endpoint on a node that only one of two maps has.
func (u unresponsive) concern(a *Address, o unresponsive) bool {
	return slices.ContainsFunc(a.services, func(s cluster.Service) bool {
		return s.Endpoints.Any(func(e *cluster.Endpoint) bool { return u.has(e.Node) != o.has(e.Node) })
	})
}

// text says since when the nodes of endpoints do not respond.
func (u unresponsive) text(of []cluster.Endpoint) string {
	var names []string
	for _, e := range of {
		names = append(names, fmt.Sprintf("node %s has not responded since %s", e.Node,
			u[e.Node].UTC().Format(time.RFC3339)))
	}
	slices.Sort(names)
	return cluster.Enumerate(slices.Compact(names))
}
