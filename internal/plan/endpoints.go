package plan

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// endpoints are a Service's endpoints of one address family, as this node uses them. Each port is
// decided alone: one without ready endpoints falls back alone, and one without any is not served.
type endpoints struct {
	groups []groupEndpoints // without ports that have no endpoints
	ports  []portEndpoints  // in the order of the Service's ports
}

// topology is where this node is, and which others do not respond.
type topology struct {
	node, zone   string // zone is empty without the label
	unresponsive unresponsive
}

// endpointsOf classifies the endpoints of a Service.
func (t *topology) endpointsOf(s cluster.Service, addr netip.Addr) endpoints {
	groups := s.PortGroups(addr.Is4())
	e := endpoints{groups: make([]groupEndpoints, len(groups)), ports: make([]portEndpoints, len(s.Ports))}
	for i, g := range groups {
		e.groups[i] = t.classify(g.Endpoints, s.Spec)
		for _, p := range g.Ports {
			e.ports[p.Index] = portEndpoints{&e.groups[i], p}
		}
	}
	return e
}

// classify classifies the endpoints of some ports.
func (t *topology) classify(all []cluster.Endpoint, s *cluster.Spec) groupEndpoints {
	g := groupEndpoints{all: all}
	g.usable, g.unresponsiveText = t.unresponsive.usable(all, s.PublishNotReady)
	g.preferred = g.usable
	if len(g.usable) > 0 && g.usable[0].GetsFlows(s.PublishNotReady) { // then all are ready
		g.preferred, g.hintsText = t.applyHints(g.usable)
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		g.local = cluster.UsableEndpoints(cluster.FilterEndpoints(all, t.isLocal), s.PublishNotReady)
		g.here = slices.ContainsFunc(g.usable, func(e cluster.Endpoint) bool { return t.isLocal(&e) })
	}
	g.draining = remaining(all, g.preferred, g.local)
	return g
}

// isLocal reports whether an endpoint is on this node.
func (t *topology) isLocal(e *cluster.Endpoint) bool { return e.Node != "" && e.Node == t.node }

// remaining returns the endpoints of all that are neither in one nor in other; both are parts of
// all, in its order.
func remaining(all, one, other []cluster.Endpoint) (rest []cluster.Endpoint) {
	if len(all) == len(one) {
		return nil
	}
	next := func(part *[]cluster.Endpoint, e cluster.Endpoint) bool {
		if len(*part) == 0 || (*part)[0] != e {
			return false
		}
		*part = (*part)[1:]
		return true
	}
	for _, e := range all {
		inOne, inOther := next(&one, e), next(&other, e)
		if !inOne && !inOther {
			rest = append(rest, e)
		}
	}
	return rest
}
