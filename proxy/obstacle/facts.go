package obstacle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A collector reads facts. It changes nothing, and records what cannot be read.
type collector struct {
	Facts facts
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

// Counters are counters of the kernel, for a network namespace. They only grow, so that an
// obstacle is a difference between two calls of Collect. The zero value is for the first call,
// which detects no difference.
type Counters struct {
	known                    bool
	reversed, early, refused uint64
}

// Collect reads interfaces, routes, sysctls and counters in the network namespace of the calling
// thread; Judge reads the rules. It compares counters with before, and then updates before.
// What cannot be read is in Unseen. It blocks for a system call for each interface and sample,
// and must not run on the path of a change.
func Collect(state state.State, before *Counters) *collector {
	s := &collector{names: make(map[int]string), Facts: facts{families: familiesOf(&state), marked: state.SNAT.Mark.Value&kubeProxyMarkBit != 0}}
	s.Facts.samples, s.Facts.partial = takeSamples(state, localSamples, remoteSamples)
	s.links()
	s.routes()
	s.sysctls()
	s.counters(before)
	return s
}

// links lists the interfaces. Only netlink reports whether a bridge calls netfilter
// (IFLA_BR_NF_CALL_IPTABLES): a container cannot read the bridge's sysfs of its own namespace.
func (s *collector) links() {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	s.miss("interfaces", err)
	for _, m := range messages {
		if len(m) < unix.SizeofIfInfomsg {
			continue
		}
		flags, all := binary.NativeEndian.Uint32(m[8:]), m[unix.SizeofIfInfomsg:]
		name := nfnl.CString(nfnl.Attribute(all, unix.IFLA_IFNAME))
		s.names[int(int32(binary.NativeEndian.Uint32(m[4:])))] = name
		s.plugin(name)
		if flags&unix.IFF_UP == 0 || flags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		w := iface{name: name, bridge: nfnl.CString(nfnl.Attribute(all, unix.IFLA_LINKINFO, unix.IFLA_INFO_KIND)) == "bridge"}
		if w.bridge {
			for family, t := range []uint16{unix.IFLA_BR_NF_CALL_IPTABLES, unix.IFLA_BR_NF_CALL_IP6TABLES} {
				called := nfnl.Attribute(all, unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA, t)
				w.called[family] = len(called) == 1 && called[0] == 1
			}
		}
		s.Facts.interfaces = append(s.Facts.interfaces, w)
	}
}

// routes records which networks the interfaces lead to, and the interface of each sample.
func (s *collector) routes() {
	for f := range state.SetID(2) {
		if s.Facts.families[f] {
			s.networks(f)
		}
	}
	s.routeSamples()
}

func (s *collector) routeSamples() {
	for i := range s.Facts.samples {
		s.route(&s.Facts.samples[i])
	}
}

// sampleAll takes as many samples as there are flows, up to a limit.
func (s *collector) sampleAll(state state.State) {
	s.Facts.samples, s.Facts.partial = takeSamples(state, allSamples, allSamples)
	s.routeSamples()
}

// networks records which interfaces lead to networks, by the main table. Tables of policy
// routing are not read: their rules select packets that are unknown here.
func (s *collector) networks(f state.SetID) {
	routes, err := netlink.RouteListFiltered([]int{unix.AF_INET, unix.AF_INET6}[f], &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	s.miss("routes", err)
	for _, r := range routes {
		indexes := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			w := s.iface(s.names[index])
			if w == nil {
				continue
			}
			ones, bits := 0, 128
			if r.Dst != nil {
				ones, bits = r.Dst.Mask.Size()
			}
			linkLocal := r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast()
			w.network[f] = w.network[f] || ones < bits && !linkLocal
			w.uplink[f] = w.uplink[f] || ones == 0
			w.learnt6 = w.learnt6 || ones == 0 && f == 1 && r.Protocol == unix.RTPROT_RA
		}
	}
}

// iface returns the interface that is up and has this name, or nil.
func (s *collector) iface(name string) *iface {
	i := slices.IndexFunc(s.Facts.interfaces, func(w iface) bool { return w.name == name })
	if i < 0 {
		return nil
	}
	return &s.Facts.interfaces[i]
}

// route asks the kernel how it would send to a sample's backend.
func (s *collector) route(p *sample) {
	to := p.backend.Addr()
	routes, err := netlink.RouteGetWithOptions(net.IP(to.AsSlice()), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		return // no route: the pod is gone, or another node's
	}
	r := routes[0]
	p.own = r.Type == unix.RTN_LOCAL
	p.out = s.names[r.LinkIndex]
	if r.Dst != nil && !p.own {
		ones, bits := r.Dst.Mask.Size()
		p.onLink = ones < bits && len(r.Gw) == 0 && len(r.MultiPath) == 0
	}
}

// counters compares the kernel's counters with those of the last collection. Packets that conntrack
// could not insert count only while it is nearly full: two packets of one flow that race for
// the same entry increase the same counter.
func (s *collector) counters(before *Counters) {
	now := Counters{known: true}
	var err error
	now.reversed, err = reversedPackets()
	s.miss("packets dropped by rp_filter", err)
	now.early, now.refused, err = conntrackDrops()
	s.miss("packets dropped by conntrack", err)
	if before.known {
		f := &s.Facts
		f.reversed = now.reversed > before.reversed
		f.Conntrack.evicted = now.early > before.early
		f.Conntrack.Refused = now.refused > before.refused && f.Conntrack.count*100 >= f.Conntrack.max*NearlyFull
	}
	*before = now
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

// From linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGetStatsCPU     = 4
	ctaStatsDrop      = 10
	ctaStatsEarlyDrop = 11
)

// conntrackDrops returns how many entries the kernel evicted to make room for others, and how
// many packets it dropped because it could not insert their entry: the table was full, or
// another packet inserted the same entry first. Both are sums over all CPUs.
func conntrackDrops() (early, refused uint64, err error) {
	s, err := nfnl.Dial()
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	err = s.Dump(unix.NFNL_SUBSYS_CTNETLINK, ctGetStatsCPU, unix.AF_UNSPEC, nil, func(data []byte) {
		early += uint64(nfnl.Uint32(nfnl.Attribute(data, ctaStatsEarlyDrop)))
		refused += uint64(nfnl.Uint32(nfnl.Attribute(data, ctaStatsDrop)))
	})
	return early, refused, err
}
