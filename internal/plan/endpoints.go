package plan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// endpoints are a Service's endpoints of one address family, as this node uses them, sorted by
// the name and protocol of the port.
type endpoints []portEndpoints

// portEndpoints are the endpoints of one port, in lists sorted by address. Each port is decided
// alone: one without ready endpoints falls back alone.
type portEndpoints struct {
	name     string
	protocol corev1.Protocol

	// usable may get new flows: the ready endpoints or, without
	// any, terminating endpoints that still serve (KEP-1669).
	usable []cluster.Endpoint
	// preferred are the usable endpoints for this node by topology hints; all without valid
	// hints.
	preferred []cluster.Endpoint
	// local are the usable endpoints on this node, by the same rule: a terminating pod serves
	// clients that still arrive here, even if other nodes have ready ones. Only with
	// externalTrafficPolicy Local.
	local []cluster.Endpoint
	// draining are in neither list: they terminate, are not ready, are for other nodes, or are
	// on an unresponsive node. They get no new flows and keep existing ones.
	draining []cluster.Endpoint
	// hintsText says how topology hints were applied, empty without hints.
	hintsText string
	// unresponsiveText names unresponsive nodes with endpoints, empty if there are none.
	unresponsiveText string
}

// endpointsOf classifies the endpoints of a Service.
func (v *View) endpointsOf(s cluster.Service, addr netip.Addr) (e endpoints) {
	if s.Endpoints == nil {
		return nil
	}
	for list := s.Endpoints.List; len(list) > 0; {
		first := &list[0]
		n := slices.IndexFunc(list, func(e cluster.Endpoint) bool { return e.PortName != first.PortName || e.Protocol != first.Protocol })
		if n < 0 {
			n = len(list)
		}
		all := filter(list[:n], func(e *cluster.Endpoint) bool { return e.Addr.Addr().Is4() == addr.Is4() })
		e = append(e, v.classify(all, s.Spec, first))
		list = list[n:]
	}
	return e
}

// classify classifies the endpoints of the port of like.
func (v *View) classify(all []cluster.Endpoint, s *cluster.Spec, like *cluster.Endpoint) portEndpoints {
	p := portEndpoints{name: like.PortName, protocol: like.Protocol}
	p.usable, p.unresponsiveText = v.usable(all, s.PublishNotReady)
	p.preferred = p.usable
	if len(p.usable) > 0 && ready(&p.usable[0], s.PublishNotReady) { // then all are
		p.preferred, p.hintsText = v.applyHints(p.usable)
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		p.local = usable(filter(all, v.isLocal), s.PublishNotReady)
	}
	p.draining = remaining(all, p.preferred, p.local)
	return p
}

// isLocal reports whether an endpoint is on this node.
func (v *View) isLocal(e *cluster.Endpoint) bool { return e.Node != "" && e.Node == v.Node }

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

// forPort returns the endpoints of a port.
func (e endpoints) forPort(p cluster.Port) portEndpoints {
	i, found := slices.BinarySearchFunc(e, p, func(e portEndpoints, p cluster.Port) int {
		return cmp.Or(cmp.Compare(e.name, p.Name), cmp.Compare(e.protocol, p.Protocol))
	})
	if !found {
		return portEndpoints{}
	}
	return e[i]
}
