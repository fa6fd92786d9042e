package obstacle

import (
	"fmt"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// judgeForwarding finds interfaces by which traffic to VIPs or replies arrive and are not
// forwarded. Other interfaces may have reasons not to forward. There is one obstacle for each
// sysctl to change: the global one if it is 0, since it sets those of all interfaces.
func judgeForwarding(f *facts) (all []Obstacle) {
	for family := range state.SetID(2) {
		var shut []string
		for _, w := range f.interfaces {
			if f.families[family] && f.carries(w, family) && !w.forwards(f, family) {
				shut = append(shut, w.name)
			}
		}
		if len(shut) == 0 {
			continue
		}
		variables, names := []string{"net.ipv4.ip_forward"}, []string{enumerate(shut)}
		if family == 1 {
			variables[0] = "net.ipv6.conf.all.forwarding"
		} else if f.forward4 {
			variables, names = nil, shut
			for _, iface := range shut {
				variables = append(variables, "net.ipv4.conf."+sysctlName(iface)+".forwarding")
			}
		}
		for i, v := range variables {
			message := fmt.Sprintf("%s is 0, so that nothing that comes in by %s is forwarded over IPv%c: set it to 1",
				v, names[i], "46"[family])
			if family == 1 { // rt6_purge_dflt_routers: with 2 the interface still accepts router advertisements
				message += "; before that, set accept_ra to 2 for an interface whose default route is from router " +
					"advertisements, or it is lost"
			}
			all = append(all, Obstacle{ForwardingOff, v, message, f.unforwarded(family)})
		}
	}
	return all
}

// forwards reports whether the kernel forwards packets that arrive by the interface. For IPv4
// the interface's sysctl alone decides (ip_route_input_slow). For IPv6 it is the one for all
// interfaces, and since Linux 6.17 also the interface's force_forwarding (ip6_forward).
func (w iface) forwards(f *facts, family state.SetID) bool {
	return family == 0 && w.forward4 || family == 1 && (f.forward6 || w.force6)
}

// carries reports whether traffic to VIPs or replies may arrive by the interface: it has the
// default route, or the route to a sample's backend.
func (f *facts) carries(w iface, family state.SetID) bool {
	return w.uplink[family] || slices.ContainsFunc(f.samples,
		func(s sample) bool { return s.family == family && s.out == w.name })
}

// clients returns the interfaces by which clients may arrive. Pods of this node do not count.
func (f *facts) clients(family state.SetID) (names []string) {
	for _, w := range f.interfaces {
		if w.network[family] && !slices.ContainsFunc(f.samples,
			func(s sample) bool { return !s.remote && s.out == w.name }) {
			names = append(names, w.name)
		}
	}
	return names
}

// unforwarded returns the flows of a family that fail because interfaces do not forward: all that
// are forwarded, if requests arrive by no interface that forwards, and those to a Destination from
// which no reply arrives by one.
func (f *facts) unforwarded(family state.SetID) (blocked Flows) {
	forwards := func(iface string) bool {
		w := f.iface(iface)
		return w == nil || w.forwards(f, family)
	}
	if in := f.clients(family); len(in) > 0 && !slices.ContainsFunc(in, forwards) {
		return forwarded(family)
	}
	for _, to := range []Destination{ToPods, ToOtherNodes} {
		var back []string
		for _, s := range f.samples {
			if s.family == family && s.to() == to {
				back = append(back, s.out)
			}
		}
		if len(back) > 0 && !f.partial.Has(family, to) && !slices.ContainsFunc(back, forwards) {
			blocked |= FlowsTo(family, to)
		}
	}
	return blocked
}
