package obstacle

import (
	"fmt"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// judgeForwarding finds interfaces by which traffic to VIPs or replies arrive and are not
// forwarded. Other interfaces may have reasons not to forward.
func judgeForwarding(f *facts) (all []Obstacle) {
	for family := range state.SetID(2) {
		if !f.families[family] {
			continue
		}
		var shut, learnt []string
		for i := range f.interfaces {
			w := &f.interfaces[i]
			if !f.carries(w, family) || w.forwards(f, family) {
				continue
			}
			shut = append(shut, w.name)
			if family == 1 && w.learnt6 {
				learnt = append(learnt, w.name)
			}
		}
		if len(shut) > 0 {
			all = append(all, forwardingOff(f, family, shut, learnt)...)
		}
	}
	return all
}

// forwards reports whether the kernel forwards packets that arrive by the interface. For IPv4
// the interface's sysctl alone decides (ip_route_input_slow). For IPv6 it is the one for all
// interfaces, and since Linux 6.17 also the interface's force_forwarding (ip6_forward).
func (w *iface) forwards(f *facts, family state.SetID) bool {
	if family == 0 {
		return w.forward4
	}
	return f.forward6 || w.force6
}

// unforwarded returns the flows of a family that fail because interfaces do not forward: all that
// are forwarded, if requests arrive by no interface that forwards, and those to a Destination from
// which no reply arrives by one.
func (f *facts) unforwarded(family state.SetID) (blocked Flows) {
	arrivals := slices.DeleteFunc(slices.Clone(f.interfaces), func(w iface) bool { return !w.network[family] || f.leadsToPods(&w) })
	if len(arrivals) > 0 && !slices.ContainsFunc(arrivals, func(w iface) bool { return w.forwards(f, family) }) {
		return forwarded(family)
	}
	for _, to := range []Destination{ToPods, ToOtherNodes} {
		back := slices.DeleteFunc(slices.Clone(f.samples), func(s sample) bool { return s.family != family || s.to() != to })
		if len(back) > 0 && !f.partial.has(family, to) && !slices.ContainsFunc(back, func(s sample) bool { return f.replyForwarded(s) }) {
			blocked |= FlowsTo(family, to)
		}
	}
	return blocked
}

// replyForwarded reports whether a reply to the sample may be forwarded. The interface may be
// unknown.
func (f *facts) replyForwarded(s sample) bool {
	i := slices.IndexFunc(f.interfaces, func(w iface) bool { return w.name == s.out })
	return i < 0 || f.interfaces[i].forwards(f, s.family)
}

// forwardingOff returns one obstacle for each sysctl to change: the global one if it is 0, since
// it sets those of all interfaces, else those of the interfaces shut. learnt are the interfaces
// that would lose their default route.
func forwardingOff(f *facts, family state.SetID, shut, learnt []string) []Obstacle {
	const sentence = "%s is 0, so that nothing that comes in by %s is forwarded over %s: set it to 1"
	switch {
	case family == 1:
		const name = "net.ipv6.conf.all.forwarding"
		message := fmt.Sprintf(sentence, name, enumerate(shut), "IPv6")
		for _, iface := range learnt {
			// rt6_purge_dflt_routers: with 2 the interface still accepts router advertisements.
			message += fmt.Sprintf("; before that set net.ipv6.conf.%s.accept_ra to 2, or the default route that a router told %s is lost", sysctlName(iface), iface)
		}
		return []Obstacle{{ForwardingOff, name, message, f.unforwarded(family)}}
	case !f.forward4:
		const name = "net.ipv4.ip_forward"
		return []Obstacle{{ForwardingOff, name, fmt.Sprintf(sentence, name, enumerate(shut), "IPv4"), f.unforwarded(family)}}
	}
	var all []Obstacle
	for _, iface := range shut {
		name := "net.ipv4.conf." + sysctlName(iface) + ".forwarding"
		all = append(all, Obstacle{ForwardingOff, name, fmt.Sprintf(sentence, name, iface, "IPv4"), f.unforwarded(family)})
	}
	return all
}
