package plan

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// serve makes the frontends of a Service on addr, and decides whether it may be announced: the
// code is empty if so.
func (v *View) serve(addr netip.Addr, s cluster.Service) (fronts []proxy.Frontend, e endpoints, code cluster.Code) {
	e = v.endpointsOf(s, addr)
	networks, open := allowedSources(s.Spec, addr)
	for _, p := range s.Ports {
		f := v.frontend(s.Spec, p, e.forPort(p))
		f.Sources = networks
		if !open {
			f = closeFrontend(f)
		}
		fronts = append(fronts, f)
	}
	return fronts, e, v.assess(s.Spec, e, open)
}

// assess decides whether a Service may be announced. That depends on all its ports together:
// an address is announced as a whole.
func (v *View) assess(s *cluster.Spec, e endpoints, open bool) cluster.Code {
	usable := e.join(func(p portEndpoints) []cluster.Endpoint { return p.usable })
	switch {
	case !open:
		return cluster.NoSource
	case len(usable) == 0:
		return cluster.NoEndpoints
	case s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && !slices.ContainsFunc(usable, func(e cluster.Endpoint) bool { return v.isLocal(&e) }):
		return cluster.NoLocalEndpoint
	default:
		return ""
	}
}

// frontend makes the frontend of one port.
func (v *View) frontend(s *cluster.Spec, p cluster.Port, e portEndpoints) proxy.Frontend {
	all := backends(e.preferred)
	f := proxy.Frontend{
		Protocol: protocol(p.Protocol),
		Port:     p.Port,
		Name:     s.Name.String(),
		// Clients on this node reach all endpoints: externalTrafficPolicy is for external
		// clients, and kube-proxy applies internalTrafficPolicy only to the cluster IP.
		Internal:  proxy.Target{Backends: all, Remote: proxy.Preserve},
		External:  proxy.Target{Backends: all, Remote: proxy.Masquerade},
		Scheduler: scheduler(s.Scheduler),
		Affinity:  s.Affinity,
		Draining:  addrPorts(e.draining),
	}
	if p.Name != "" {
		f.Name += ":" + p.Name
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		f.External.Backends = backends(e.local)
		if len(f.External.Backends) == 0 && len(all) > 0 {
			// The client retries, and by then the router has selected another node.
			f.External.Miss = proxy.Drop
		}
	}
	return f
}

// maxConflicts bounds the Reasons about ports of one Service that another Service has.
const maxConflicts = 16

// disjoint returns the frontends of more whose port is not taken, and a Reason for each of the
// others.
func disjoint(taken, more []proxy.Frontend, addr netip.Addr, service cluster.Name) (free []proxy.Frontend, conflicts []cluster.Reason) {
	if len(taken) == 0 {
		return more, nil
	}
	// A map, since a Service may have thousands of ports.
	type port struct {
		proxy.Protocol
		number uint16
	}
	owner := make(map[port]string, len(taken))
	for _, t := range taken {
		owner[port{t.Protocol, t.Port}] = t.Name
	}
	for _, f := range more {
		name, found := owner[port{f.Protocol, f.Port}]
		if !found {
			free = append(free, f)
			continue
		}
		if len(conflicts) == maxConflicts {
			continue
		}
		conflicts = append(conflicts, cluster.Reason{VIP: addr, Service: service, Protocol: "proxy", Code: cluster.AddressConflict,
			Message: fmt.Sprintf("port %s/%d of %s is used by %s; give one of the two another port or address", f.Protocol, f.Port, addr, name)})
	}
	return free, conflicts
}

// backends translates endpoints, nil for none.
func backends(list []cluster.Endpoint) []proxy.Backend {
	if len(list) == 0 {
		return nil
	}
	out := make([]proxy.Backend, len(list))
	for i := range list {
		out[i] = proxy.Backend{Addr: list[i].Addr, Node: list[i].Node}
	}
	return out
}

// addrPorts returns the addresses of endpoints, nil for none.
func addrPorts(list []cluster.Endpoint) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, len(list))
	for i := range list {
		out[i] = list[i].Addr
	}
	return out
}

// protocol translates a Service's protocol; parsing rejects all others.
func protocol(p corev1.Protocol) proxy.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return proxy.UDP
	case corev1.ProtocolSCTP:
		return proxy.SCTP
	default:
		return proxy.TCP
	}
}

// scheduler translates a Service's scheduler; parsing rejects all others.
func scheduler(name string) proxy.Scheduler {
	switch name {
	case cluster.SchedulerRoundRobin:
		return proxy.RoundRobin
	case cluster.SchedulerSourceHash:
		return proxy.SourceHash
	case cluster.SchedulerMaglev:
		return proxy.Maglev
	default:
		return proxy.Random
	}
}
