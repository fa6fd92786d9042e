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

// setWeights sets the weight of an address's routes: the number of pods on this node that serve
// it for Services with the policy Local. A pod counts once for all its ports and Services, since
// a router balances by address. Pods of Services with the policy Cluster do not count: any node
// forwards to them. Either all nodes that announce the address have a weight or none has:
// routers ignore weights that some routes lack.
func (r *routers) setWeights(routes []bgp.Route, pods []netip.Addr) {
	slices.SortFunc(pods, netip.Addr.Compare)
	n := uint32(len(slices.Compact(pods)))
	for i := range routes {
		if r.wantsWeights(routes[i].Peers) {
			routes[i].Weight = n
		}
	}
}

// appendLocalPods appends the pods of a Local Service on this node, if any router wants weights:
// else the routes would change with every endpoint for no reason.
func (r *routers) appendLocalPods(list []netip.Addr, s *cluster.Spec, fronts []proxy.Frontend) []netip.Addr {
	if s.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || !r.wantsWeights("") {
		return list
	}
	for _, f := range fronts {
		for _, b := range f.External.Backends {
			list = append(list, b.Addr.Addr())
		}
	}
	return list
}

// wantsWeights reports whether any router of peers receives weights.
func (r *routers) wantsWeights(peers bgp.Peers) bool {
	return slices.ContainsFunc(r.sessions, func(s bgp.Session) bool { return s.Weights && peers.Has(s.Name) })
}

// weightText describes the weight of a route, and which routers receive it if not all do, as the
// end of a sentence.
func (r *routers) weightText(route bgp.Route) string {
	if route.Weight == 0 {
		return ""
	}
	var names []string
	all := true
	for _, s := range r.sessions {
		switch {
		case !route.Peers.Has(s.Name):
		case s.Weights:
			names = append(names, s.Name)
		default:
			all = false
		}
	}
	if all {
		return fmt.Sprintf(" with weight %d", route.Weight)
	}
	return fmt.Sprintf(" (with weight %d to %s)", route.Weight, cluster.Enumerate(names))
}
