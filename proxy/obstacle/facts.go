package obstacle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// facts are what a collector found on the node, except for other programs' rules. An array with
// two elements has one for IPv4 and one for IPv6.
type facts struct {
	families   [2]bool // families that have VIPs
	interfaces []iface
	samples    []sample
	partial    Flows   // that have more than samples
	marked     bool    // Fanfare sets kube-proxy's mark
	forward6   bool    // net.ipv6.conf.all.forwarding
	forward4   bool    // net.ipv4.ip_forward
	reversed   bool    // rp_filter has dropped packets since the last collection
	entries    int     // of conntrack in this namespace
	maxEntries int     // 0: unknown
	bridgeNF   [2]bool // net.bridge.bridge-nf-call-iptables and -ip6tables
	plugin     pluginFacts
}

// An iface is an interface that is up, other than loopback.
type iface struct {
	name     string
	bridge   bool
	uplink   [2]bool // the default route of the family uses it
	network  [2]bool // a route to more than one address does: clients may arrive by it
	forward4 bool
	force6   bool // net.ipv6.conf.IF.force_forwarding, of Linux 6.17 and later
	rpFilter int  // the effective one: the maximum of the interface's and that of all
}

// A collector reads facts. It changes nothing, and records what cannot be read.
type collector struct {
	facts facts
	names map[int]string // of interfaces, by index
	// Unseen are sentences about what could not be read, for the Status of package proxy. An
	// obstacle there would remain undetected.
	Unseen []string
}

// miss records what could not be looked at.
func (s *collector) miss(what string, err error) {
	if err != nil {
		s.Unseen = append(s.Unseen, fmt.Sprintf("%s: %v", what, err))
	}
}

// A Counter has the packets that rp_filter had dropped at the last call of Collect. The zero value
// is for the first call, which detects no difference.
type Counter struct {
	known    bool
	reversed uint64
}

// Collect reads interfaces, routes and sysctls in the network namespace of the calling thread;
// Judge reads the rules. What cannot be read is in Unseen. It blocks for a system call for each
// interface and sample, and must not run on the path of a change.
func Collect(state state.State, before *Counter) *collector {
	s := &collector{
		names: make(map[int]string), facts: facts{
			families: familiesOf(&state), marked: state.SNAT.Mark.Value&kubeProxyMarkBit != 0,
		},
	}
	s.links()
	for f, used := range s.facts.families {
		if used {
			s.networks(f)
		}
	}
	s.sample(state, localSamples, remoteSamples)
	s.sysctls()
	reversed, err := reversedPackets()
	s.miss("packets dropped by rp_filter", err)
	s.facts.reversed = before.known && reversed > before.reversed
	*before = Counter{true, reversed}
	return s
}

func (s *collector) links() {
	links, err := netlink.LinkList()
	s.miss("interfaces", err)
	for _, l := range links {
		at := l.Attrs()
		s.names[at.Index] = at.Name
		s.plugin(at.Name)
		if at.Flags&net.FlagUp != 0 && at.Flags&net.FlagLoopback == 0 {
			s.facts.interfaces = append(s.facts.interfaces, iface{name: at.Name, bridge: l.Type() == "bridge"})
		}
	}
}

// networks records which interfaces lead to networks, by the main table. Tables of policy
// routing are not read: their rules select packets that are unknown here.
func (s *collector) networks(f int) {
	routes, err := netlink.RouteListFiltered([]int{unix.AF_INET, unix.AF_INET6}[f],
		&netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	s.miss("routes", err)
	for _, r := range routes {
		ones, bits := 0, 128
		if r.Dst != nil {
			ones, bits = r.Dst.Mask.Size()
		}
		linkLocal := r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast()
		for _, hop := range append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: r.LinkIndex}) {
			if w := s.facts.iface(s.names[hop.LinkIndex]); w != nil {
				w.network[f] = w.network[f] || ones < bits && !linkLocal
				w.uplink[f] = w.uplink[f] || ones == 0
			}
		}
	}
}

// iface returns the interface that is up and has this name, or nil.
func (f *facts) iface(name string) *iface {
	i := slices.IndexFunc(f.interfaces, func(w iface) bool { return w.name == name })
	if i < 0 {
		return nil
	}
	return &f.interfaces[i]
}

// sample takes samples, and asks the kernel how it would send to their backends.
func (s *collector) sample(state state.State, local, remote int) {
	s.facts.samples, s.facts.partial = takeSamples(state, local, remote)
	for i := range s.facts.samples {
		p := &s.facts.samples[i]
		routes, err := netlink.RouteGetWithOptions(net.IP(p.backend.Addr().AsSlice()),
			&netlink.RouteGetOptions{FIBMatch: true})
		if err != nil || len(routes) == 0 {
			continue // no route: the pod is gone, or another node's
		}
		r := routes[0]
		p.own, p.out = r.Type == unix.RTN_LOCAL, s.names[r.LinkIndex]
		if r.Dst != nil && !p.own {
			ones, bits := r.Dst.Mask.Size()
			p.onLink = ones < bits && len(r.Gw) == 0 && len(r.MultiPath) == 0
		}
	}
}

// reversedPackets returns how many packets rp_filter has dropped in this namespace:
// IPReversePathFilter of TcpExt in netstat(5), whose lines come in pairs of names and values.
func reversedPackets() (uint64, error) {
	b, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return 0, err
	}
	lines := strings.Split(string(b), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if at := slices.Index(names, "IPReversePathFilter"); at > 0 && at < len(values) {
			return strconv.ParseUint(values[at], 10, 64)
		}
	}
	return 0, errors.New("not counted by this kernel")
}
