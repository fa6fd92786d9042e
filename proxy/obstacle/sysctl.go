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
	f := &s.facts
	f.forward4 = s.sysctl("net/ipv4/ip_forward", 0) != 0
	f.forward6 = s.sysctl("net/ipv6/conf/all/forwarding", 0) != 0
	f.bridgeNF[0] = s.sysctl("net/bridge/bridge-nf-call-iptables", 0) != 0
	f.bridgeNF[1] = s.sysctl("net/bridge/bridge-nf-call-ip6tables", 0) != 0
	f.entries = s.sysctl("net/netfilter/nf_conntrack_count", 0)
	f.maxEntries = s.sysctl("net/netfilter/nf_conntrack_max", 0)
	strict := s.sysctl("net/ipv4/conf/all/rp_filter", 0)
	for i := range f.interfaces {
		w := &f.interfaces[i]
		if !w.network[0] && !f.carries(*w, 0) && !f.carries(*w, 1) {
			continue // the veth of a pod that is not a backend: a node has hundreds
		}
		// An interface that has gone meanwhile is no obstacle.
		w.forward4 = s.sysctl("net/ipv4/conf/"+w.name+"/forwarding", 1) != 0
		w.force6 = s.sysctl("net/ipv6/conf/"+w.name+"/force_forwarding", 0) != 0
		w.rpFilter = max(strict, s.sysctl("net/ipv4/conf/"+w.name+"/rp_filter", 0))
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
	clients := f.clients(0)
	strict := slices.DeleteFunc(slices.Clone(clients), func(name string) bool { return f.iface(name).rpFilter != 1 })
	if !f.families[0] || !f.reversed || len(clients) < 2 || len(strict) == 0 {
		return nil
	}
	const name = "net.ipv4.conf.*.rp_filter"
	return []Obstacle{{Code: ReversePath, About: name, Message: fmt.Sprintf(
		"rp_filter is 1 (strict) for %s, and by it the kernel drops packets now that come in by one interface while "+
			"the route to their source leads by another: if clients reach this node so, set "+
			"net.ipv4.conf.%s.rp_filter and net.ipv4.conf.all.rp_filter to 2 (loose)",
		enumerate(strict), sysctlName(strict[0]))}}
}

// sysctlName returns an interface's name as sysctl(8) expects it within a variable's name, where
// dots are separators: eth0.5 is eth0/5.
func sysctlName(iface string) string { return strings.ReplaceAll(iface, ".", "/") }
