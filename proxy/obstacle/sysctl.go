package obstacle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// sysctls reads variables. A missing one mostly counts as zero: the kernel is older than the
// variable, or its module is not loaded.
func (s *collector) sysctls() {
	f := &s.Facts
	f.forward4 = s.sysctl("net/ipv4/ip_forward", 0) != 0
	f.forward6 = s.sysctl("net/ipv6/conf/all/forwarding", 0) != 0
	f.bridgeNF[0] = s.sysctl("net/bridge/bridge-nf-call-iptables", 0) != 0
	f.bridgeNF[1] = s.sysctl("net/bridge/bridge-nf-call-ip6tables", 0) != 0
	f.Conntrack.count = s.sysctl("net/netfilter/nf_conntrack_count", 0)
	f.Conntrack.max = s.sysctl("net/netfilter/nf_conntrack_max", 0)
	strict := s.sysctl("net/ipv4/conf/all/rp_filter", 0)
	for i := range f.interfaces {
		w := &f.interfaces[i]
		if !w.network[0] && !f.carries(w, 0) && !f.carries(w, 1) {
			continue // the veth of a pod that is not a backend: a node has hundreds
		}
		// An interface that has gone meanwhile is no obstacle.
		w.forward4 = s.sysctl("net/ipv4/conf/"+w.name+"/forwarding", 1) != 0
		w.force6 = s.sysctl("net/ipv6/conf/"+w.name+"/force_forwarding", 0) != 0
		w.rpFilter = max(strict, s.sysctl("net/ipv4/conf/"+w.name+"/rp_filter", 0))
		w.learnt6 = w.learnt6 && s.sysctl("net/ipv6/conf/"+w.name+"/accept_ra", 0) == 1
	}
}

// sysctl reads a variable below /proc/sys, which is that of the thread's network namespace. It
// returns absent if the variable does not exist.
func (s *collector) sysctl(name string, absent int) int {
	b, err := os.ReadFile("/proc/sys/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return absent
	}
	n, parse := 0, error(nil)
	if err == nil {
		n, parse = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	s.miss(name, errors.Join(err, parse))
	return n
}

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
		if len(back) > 0 && !f.partial[family][to] && !slices.ContainsFunc(back, func(s sample) bool { return f.replyForwarded(s) }) {
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

// judgeReversePath needs evidence, because the clients' routes are unknown: strict rp_filter
// (RFC 3704) drops a packet only if the route to its source uses another interface. So packets
// must have been dropped, and the node must have two interfaces to networks. Interfaces to pods
// do not count: a packet of a pod with a forged source is dropped rightly.
func judgeReversePath(f *facts) []Obstacle {
	var strict []string
	networks := 0
	for i := range f.interfaces {
		w := &f.interfaces[i]
		if !w.network[0] || f.leadsToPods(w) {
			continue
		}
		networks++
		if w.rpFilter == 1 {
			strict = append(strict, w.name)
		}
	}
	if !f.families[0] || !f.reversed || networks < 2 || len(strict) == 0 {
		return nil
	}
	const name = "net.ipv4.conf.*.rp_filter"
	return []Obstacle{{Code: ReversePath, About: name, Message: fmt.Sprintf(
		"rp_filter is 1 (strict) for %s, and by it the kernel drops packets now that come in by one interface while the route to their source leads by another: if clients reach this node so, set net.ipv4.conf.%s.rp_filter and net.ipv4.conf.all.rp_filter to 2 (loose)",
		enumerate(strict), sysctlName(strict[0]))}}
}

// arrivals returns each sample once for every interface by which clients may arrive. Without any
// such interface, a sample keeps an unknown one.
func (f *facts) arrivals() (all []sample) {
	for _, s := range f.samples {
		came := false
		for i := range f.interfaces {
			if w := &f.interfaces[i]; w.network[s.family] && !f.leadsToPods(w) {
				s.in, came = w.name, true
				all = append(all, s)
			}
		}
		if !came {
			all = append(all, s)
		}
	}
	return all
}

// leadsToPods reports whether a backend of this node is behind the interface.
func (f *facts) leadsToPods(w *iface) bool {
	return slices.ContainsFunc(f.samples, func(s sample) bool { return !s.remote && s.out == w.name })
}

// sysctlName returns an interface's name as sysctl(8) expects it within a variable's name, where
// dots are separators: eth0.5 is eth0/5.
func sysctlName(iface string) string { return strings.ReplaceAll(iface, ".", "/") }
