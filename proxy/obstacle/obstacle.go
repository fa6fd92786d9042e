package obstacle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// An Obstacle is something on this node, outside of our rules, that drops traffic to VIPs,
// or takes it away before our rules see it.
type Obstacle struct {
	Code ObstacleCode `json:"code"`
	// About names the obstacle, such as a sysctl or a chain, uniquely for its
	// Code.
	About string `json:"about"`
	// Message is a sentence that says what is lost and what to change. It has no
	// number that changes while the obstacle stays.
	Message string `json:"message"`
}

// An ObstacleCode is the kind of an Obstacle, for programs.
type ObstacleCode string

const (
	ForwardingOff    ObstacleCode = "ForwardingOff"    // The kernel does not forward packets.
	ReversePath      ObstacleCode = "ReversePath"      // rp_filter drops packets that arrive through another interface than the route back uses.
	ConntrackFull    ObstacleCode = "ConntrackFull"    // conntrack is full, or nearly: new flows are dropped.
	BridgeBypass     ObstacleCode = "BridgeBypass"     // A bridge carries replies past netfilter.
	Firewall         ObstacleCode = "Firewall"         // Another program's chain drops traffic of the addresses.
	Untracked        ObstacleCode = "Untracked"        // Another program's rule excludes the traffic from conntrack, so that it cannot be translated.
	TranslatedBefore ObstacleCode = "TranslatedBefore" // Another program's rule translates the addresses before Fanfare's rules.
	ForeignDataPath  ObstacleCode = "ForeignDataPath"  // A network plug-in translates the addresses before netfilter.
)

var Codes = []ObstacleCode{
	ForwardingOff, ReversePath, ConntrackFull, BridgeBypass, Firewall, Untracked, TranslatedBefore, ForeignDataPath,
}

// Same says whether two are of the same kind and about the same.
func (o Obstacle) Same(p Obstacle) bool { return o.compare(p) == 0 }

func (o Obstacle) compare(p Obstacle) int {
	return cmp.Or(cmp.Compare(o.Code, p.Code), cmp.Compare(o.About, p.About))
}

// facts are what was found on the node, apart from other programs' rules.
type facts struct {
	families   [2]bool // families that have VIPs
	interfaces []iface
	samples    []sample
	forward6   bool // net.ipv6.conf.all.forwarding
	forward4   bool // net.ipv4.ip_forward
	// reversed: since the look before, rp_filter has dropped packets.
	reversed  bool
	Conntrack conntrackFacts
	bridgeNF  [2]bool // net.bridge.bridge-nf-call-iptables and -ip6tables
	plugin    pluginFacts
}

// An iface is an interface that is up, other than loopback.
type iface struct {
	name   string
	bridge bool
	// called: what the bridge switches is shown to netfilter, whatever the
	// variables for all bridges say.
	called [2]bool
	// uplink: the default route of the family leads here. network: some network
	// does, not only hosts.
	uplink  [2]bool
	network [2]bool

	forward4 bool
	// force6 is net.ipv6.conf.IF.force_forwarding, of Linux 6.17 and later.
	force6   bool
	rpFilter int  // the one in force, the larger of the interface's and that of all
	learnt6  bool // its IPv6 default route is from a router advertisement, and would be lost by forwarding
}

type conntrackFacts struct {
	count, max int // max 0: unknown
	// evicted: since the look before, flows were thrown out to make room; refused:
	// packets were dropped because there was none.
	evicted, Refused bool
}

// NearlyFull is how much of conntrack's room may be taken, in percent, before that is an
// obstacle: the load doubles in less time than a user needs to look.
const NearlyFull = 90

// pluginFacts are signs of a network plug-in that translates by BPF.
type pluginFacts struct {
	calico bool // in its eBPF mode
	cilium bool // here, in whatever mode
	// nodePort: Cilium's programs that translate what comes from outside are
	// loaded, which are its replacement of kube-proxy. blind says why that could
	// not be seen.
	nodePort bool
	blind    string
}

// judge returns the obstacles among the facts, sorted.
func judge(f *facts) []Obstacle {
	all := slices.Concat(judgeForwarding(f), judgeReversePath(f), judgeConntrack(f), judgeBridges(f), judgePlugin(f.plugin))
	slices.SortFunc(all, Obstacle.compare)
	return all
}

// carries says whether traffic to VIPs, or replies, come in by the interface as far as we
// know: it leads to clients, or to a backend.
func (f *facts) carries(w *iface, family state.SetID) bool {
	return w.uplink[family] || slices.ContainsFunc(f.samples, func(s sample) bool { return s.family == family && s.out == w.name })
}

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

// forwards says whether the kernel forwards what comes in by the interface. IPv4
// asks the interface alone (ip_route_input_slow), IPv6 the variable for all, since
// 6.17 or the interface's own (ip6_forward).
func (w *iface) forwards(f *facts, family state.SetID) bool {
	if family == 0 {
		return w.forward4
	}
	return f.forward6 || w.force6
}

func forwardingOff(f *facts, family state.SetID, shut, learnt []string) []Obstacle {
	const sentence = "%s is 0, so that nothing that comes in by %s is forwarded over %s: set it to 1"
	switch {
	case family == 1:
		const name = "net.ipv6.conf.all.forwarding"
		message := fmt.Sprintf(sentence, name, enumerate(shut), "IPv6")
		for _, iface := range learnt {
			// rt6_purge_dflt_routers: by 2 the interface keeps listening to routers.
			message += fmt.Sprintf("; before that set net.ipv6.conf.%s.accept_ra to 2, or the default route that a router told %s is lost", sysctlName(iface), iface)
		}
		return []Obstacle{{ForwardingOff, name, message}}
	case !f.forward4:
		const name = "net.ipv4.ip_forward"
		return []Obstacle{{ForwardingOff, name, fmt.Sprintf(sentence, name, enumerate(shut), "IPv4")}}
	}
	var all []Obstacle
	for _, iface := range shut {
		name := "net.ipv4.conf." + sysctlName(iface) + ".forwarding"
		all = append(all, Obstacle{ForwardingOff, name, fmt.Sprintf(sentence, name, iface, "IPv4")})
	}
	return all
}

// judgeReversePath needs evidence: rp_filter drops a client's packet only if it comes
// in by another interface than that by which the reply would leave, and clients' routes
// are unknown. With one interface to the world there is no other. A pod
// that gives itself another's address is dropped rightly; its interface leads to
// that host alone.
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
	return []Obstacle{{ReversePath, name, fmt.Sprintf(
		"rp_filter is 1 (strict) for %s, and by it the kernel drops packets now that come in by one interface while the route to their source leads by another: if clients reach this node so, set net.ipv4.conf.%s.rp_filter and net.ipv4.conf.all.rp_filter to 2 (loose)",
		enumerate(strict), sysctlName(strict[0]))}}
}

// arrivals are the samples by each interface that clients may come in by.
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

func (f *facts) leadsToPods(w *iface) bool {
	return slices.ContainsFunc(f.samples, func(s sample) bool { return !s.remote && s.out == w.name })
}

func judgeConntrack(f *facts) []Obstacle {
	const name = "net.netfilter.nf_conntrack_max"
	c := f.Conntrack
	switch {
	case c.Refused || c.evicted:
		return []Obstacle{{ConntrackFull, name, fmt.Sprintf(
			"conntrack is full (%s is %d): the kernel drops new flows, or makes room by forgetting others; raise it", name, c.max)}}
	case c.max > 0 && c.count*100 >= c.max*NearlyFull:
		return []Obstacle{{ConntrackFull, name, fmt.Sprintf(
			"conntrack is more than %d %% full (%s is %d): once it is full, new flows are dropped; raise it", NearlyFull, name, c.max)}}
	}
	return nil
}

// judgeBridges finds bridges with pods on them that see one another as neighbours. A
// pod that asks a VIP and is given such a neighbour gets the reply switched by the
// bridge, past the rules that would put the VIP back as its source.
func judgeBridges(f *facts) (all []Obstacle) {
	for i := range f.interfaces {
		w := &f.interfaces[i]
		for family := range state.SetID(2) {
			neighbours := slices.ContainsFunc(f.samples, func(s sample) bool {
				return s.family == family && s.out == w.name && s.onLink && !s.remote
			})
			if !w.bridge || !neighbours || f.bridgeNF[family] || w.called[family] {
				continue
			}
			name := []string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"}[family]
			all = append(all, Obstacle{BridgeBypass, name + " " + w.name, fmt.Sprintf(
				"%s is 0 or absent: a pod on bridge %s that asks an address and is given another pod on it gets no reply that it understands; load the module br_netfilter and set the variable to 1",
				name, w.name)})
		}
	}
	return all
}

func judgePlugin(p pluginFacts) (all []Obstacle) {
	const what = "it translates the addresses of Services before netfilter sees a packet, so that Fanfare announces them and does not forward them, and cannot promise that what is announced is forwarded"
	if p.calico {
		all = append(all, Obstacle{ForeignDataPath, "Calico", "Calico is in its eBPF mode (interface " + CalicoInterface + "): " + what +
			"; to have Fanfare forward, set linuxDataplane to Nftables or Iptables (bpfEnabled to false)"})
	}
	const cure = "; to have Fanfare forward, set kubeProxyReplacement to false and run kube-proxy"
	switch {
	case p.cilium && p.nodePort:
		all = append(all, Obstacle{ForeignDataPath, "Cilium", "Cilium replaces kube-proxy on this node: " + what + cure})
	case p.cilium && p.blind != "":
		all = append(all, Obstacle{ForeignDataPath, "Cilium", "Cilium is on this node, and whether it replaces kube-proxy cannot be seen (" + p.blind + "): if it does, " + what + cure})
	}
	return all
}

// enumerate lists names for a sentence, and of very many the first.
func enumerate(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// sysctlName is the name of an interface as sysctl takes it in the middle of a
// variable's: dots part.
func sysctlName(iface string) string { return strings.ReplaceAll(iface, ".", "/") }
