package plan

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// weigh gives routes that announce an address the number of pods of this node that
// serve it for Services whose policy is Local. A pod counts once, whatever the number
// of ports and Services that it serves: what a router shares out is the address. Pods
// of Services whose policy is Cluster do not count, since they get connections by way
// of any node; so an address of such Services alone has no weight. For one with a
// Local Service every node that announces it has a pod, unless no node has: none
// leaves out its weight while others say theirs, which would undo these.
func (v *View) weigh(routes []bgp.Route, pods []netip.Addr) {
	slices.SortFunc(pods, netip.Addr.Compare)
	n := uint32(len(slices.Compact(pods)))
	for i := range routes {
		if v.weighs(routes[i].Peers) {
			routes[i].Weight = n
		}
	}
}

// pods adds to a list what external clients reach of a Service by frontends that are
// all of this node; nothing if no router wants to know: a route would change with
// every endpoint, and for nobody.
func (v *View) pods(list []netip.Addr, s *cluster.Spec, fronts []proxy.Frontend) []netip.Addr {
	if s.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || !v.weighs("") {
		return list
	}
	for _, f := range fronts {
		for _, b := range f.External.Backends {
			list = append(list, b.Addr.Addr())
		}
	}
	return list
}

// weighs says whether any router of peers is told weights.
func (v *View) weighs(peers bgp.Peers) bool {
	return slices.ContainsFunc(v.sessions, func(s bgp.Session) bool { return s.Weights && peers.Has(s.Name) })
}

// weightOf says how a route is weighed, and by whom if not by all that are told it,
// in words that end a sentence.
func (v *View) weightOf(r bgp.Route) string {
	if r.Weight == 0 {
		return ""
	}
	var told []string
	all := true
	for _, s := range v.sessions {
		switch {
		case !r.Peers.Has(s.Name):
		case s.Weights:
			told = append(told, s.Name)
		default:
			all = false
		}
	}
	if all {
		return fmt.Sprintf(" with weight %d", r.Weight)
	}
	return fmt.Sprintf(" (with weight %d to %s)", r.Weight, cluster.Enumerate(told))
}
