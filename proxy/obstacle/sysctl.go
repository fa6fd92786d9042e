package obstacle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
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
