package plan

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// serve makes the frontends of a Service on addr that are not taken, and decides whether it may be
// announced. The Reasons are about ports that are taken.
func (t *topology) serve(addr netip.Addr, s cluster.Service, limits proxy.Limits,
	taken []proxy.Frontend) (is addressService, conflicts []cluster.Reason) {
	is = addressService{service: s, endpoints: t.endpointsOf(s, addr)}
	if why := exceedsEntries(limits, is.endpoints); why != "" {
		is.verdict = refused(why)
		return is, nil
	}
	networks, open := allowedSources(s.Spec, addr)
	is.fronts, is.ports = make([]proxy.Frontend, 0, len(s.Ports)), make([]int, 0, len(s.Ports))
	for i, p := range s.Ports {
		f := frontend(s.Spec, p, is.endpoints.ports[i])
		f.Sources = networks
		if !open {
			f = closeFrontend(f)
		}
		is.fronts, is.ports = append(is.fronts, f), append(is.ports, i)
	}
	conflicts = is.yield(taken, addr)
	if is.verdict = is.assess(open); len(conflicts) > 0 && len(is.fronts) == 0 {
		is.code, is.message = cluster.AddressConflict, conflicts[0].Message
	}
	return is, conflicts
}

// frontend makes the frontend of one port.
func frontend(s *cluster.Spec, p cluster.Port, e portEndpoints) proxy.Frontend {
	if e.groupEndpoints == nil {
		e.groupEndpoints = &groupEndpoints{}
	}
	all := e.backends(e.preferred)
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
		Draining:  e.addrPorts(e.draining),
	}
	if p.Name != "" {
		f.Name += ":" + p.Name
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		f.External.Backends = e.backends(e.local)
		if len(f.External.Backends) == 0 && len(all) > 0 {
			// The client retries, and by then the router has selected another node.
			f.External.Miss = proxy.Drop
		}
	}
	return f
}

// maxConflicts bounds the Reasons about ports of one Service that another Service has.
const maxConflicts = 16

// yield removes the frontends whose port is taken, and returns a Reason for each of them.
func (s *addressService) yield(taken []proxy.Frontend, addr netip.Addr) (conflicts []cluster.Reason) {
	if len(taken) == 0 {
		return nil
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
	fronts, ports := s.fronts, s.ports
	s.fronts, s.ports = nil, nil
	for i, f := range fronts {
		name, found := owner[port{f.Protocol, f.Port}]
		if !found {
			s.fronts, s.ports = append(s.fronts, f), append(s.ports, ports[i])
			continue
		}
		if len(conflicts) == maxConflicts {
			continue
		}
		conflicts = append(conflicts, cluster.Reason{VIP: addr, Service: s.service.Name, Protocol: "proxy",
			Code: cluster.AddressConflict, Message: fmt.Sprintf(
				"port %s/%d of %s is used by %s; give one of the two another port or address",
				f.Protocol, f.Port, addr, name)})
	}
	return conflicts
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
