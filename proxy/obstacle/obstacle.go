package obstacle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// An Obstacle is a setting or rule of this node, outside of Fanfare's rules, that drops traffic
// to VIPs or diverts it before Fanfare's rules see it.
type Obstacle struct {
	// Code is the kind, for metrics and for programs that read the status.
	Code Code `json:"code"`
	// About names the obstacle, such as a sysctl or a chain, and is unique for its Code.
	About string `json:"about"`
	// Message is a sentence that says what is lost and what to change. It contains no number
	// that changes while the obstacle remains, so that logs do not repeat it.
	Message string `json:"message"`
	// Blocks are the flows of external clients that certainly fail because of it. No address
	// is announced whose flows may be among them.
	Blocks Flows `json:"-"`
}

// A Code is the kind of an Obstacle. The codes are part of the API: they are values of
// a metric's label and of the status in JSON.
type Code string

const (
	ForwardingOff    Code = "ForwardingOff"    // The kernel does not forward packets.
	ReversePath      Code = "ReversePath"      // rp_filter drops packets that arrive through another interface than the route back uses.
	ConntrackFull    Code = "ConntrackFull"    // conntrack is full, or nearly: new flows are dropped.
	BridgeBypass     Code = "BridgeBypass"     // A bridge carries replies past netfilter.
	Firewall         Code = "Firewall"         // Another program's chain drops traffic of the addresses.
	Untracked        Code = "Untracked"        // Another program's rule excludes the traffic from conntrack, so that it cannot be translated.
	TranslatedBefore Code = "TranslatedBefore" // kube-proxy may translate the addresses before Fanfare's rules.
	ForeignDataPath  Code = "ForeignDataPath"  // A network plug-in translates the addresses before netfilter.
)

// Codes lists all codes, so that the metric of obstacles has a series for each, also at 0.
var Codes = []Code{
	ForwardingOff, ReversePath, ConntrackFull, BridgeBypass, Firewall, Untracked, TranslatedBefore, ForeignDataPath,
}

// Same reports whether two obstacles have the same Code and About. Their messages may differ.
func (o Obstacle) Same(p Obstacle) bool { return o.compare(p) == 0 }

func (o Obstacle) compare(p Obstacle) int {
	return cmp.Or(cmp.Compare(o.Code, p.Code), cmp.Compare(o.About, p.About))
}

// facts are what a collector found on the node, except for other programs' rules. An array with
// two elements has one for IPv4 and one for IPv6.
type facts struct {
	families   [2]bool // families that have VIPs
	interfaces []iface
	samples    []sample
	partial    partial // of the samples
	marked     bool    // Fanfare sets kube-proxy's mark
	forward6   bool    // net.ipv6.conf.all.forwarding
	forward4   bool    // net.ipv4.ip_forward
	// reversed: rp_filter has dropped packets since the last collection.
	reversed  bool
	Conntrack conntrackFacts
	bridgeNF  [2]bool // net.bridge.bridge-nf-call-iptables and -ip6tables
	plugin    pluginFacts
}

// An iface is an interface that is up, other than loopback.
type iface struct {
	name   string
	bridge bool
	// called: the bridge calls netfilter for what it switches, also if the sysctls for all
	// bridges are 0.
	called [2]bool
	// uplink: the default route of the family uses the interface. network: a route to more
	// than one address does, so clients may arrive by it.
	uplink  [2]bool
	network [2]bool

	forward4 bool
	// force6 is net.ipv6.conf.IF.force_forwarding, of Linux 6.17 and later.
	force6   bool
	rpFilter int  // the effective one: the maximum of the interface's and that of all
	learnt6  bool // its IPv6 default route is from a router advertisement: forwarding would delete it
}

// conntrackFacts are the state of the conntrack table of this namespace.
type conntrackFacts struct {
	count, max int // entries; max 0: unknown
	// evicted: since the last collection the kernel deleted entries to make room. Refused: it
	// dropped packets because there was none; exported for the tests of package proxy.
	evicted, Refused bool
}

// NearlyFull is the use of the conntrack table, in percent, from which it is an obstacle. An
// operator needs a warning before the table is full, because then new connections fail.
// NearlyFull is exported for the tests of package proxy.
const NearlyFull = 90

// judge returns the obstacles among the facts, sorted.
func judge(f *facts) []Obstacle {
	all := slices.Concat(judgeForwarding(f), judgeReversePath(f), judgeConntrack(f), judgeBridges(f), judgePlugin(f.plugin))
	slices.SortFunc(all, Obstacle.compare)
	return all
}

// carries reports whether traffic to VIPs or replies may arrive by the interface: it has the
// default route, or the route to a sample's backend.
func (f *facts) carries(w *iface, family state.SetID) bool {
	return w.uplink[family] || slices.ContainsFunc(f.samples, func(s sample) bool { return s.family == family && s.out == w.name })
}

// judgeConntrack finds a conntrack table that has refused or evicted entries since the last
// collection, or that will soon.
func judgeConntrack(f *facts) []Obstacle {
	const name = "net.netfilter.nf_conntrack_max"
	c := f.Conntrack
	switch {
	case c.Refused || c.evicted:
		return []Obstacle{{Code: ConntrackFull, About: name, Message: fmt.Sprintf(
			"conntrack is full (%s is %d): the kernel drops new flows, or makes room by forgetting others; raise it", name, c.max)}}
	case c.max > 0 && c.count*100 >= c.max*NearlyFull:
		return []Obstacle{{Code: ConntrackFull, About: name, Message: fmt.Sprintf(
			"conntrack is more than %d %% full (%s is %d): once it is full, new flows are dropped; raise it", NearlyFull, name, c.max)}}
	}
	return nil
}

// judgeBridges finds bridges whose pods reach each other directly. If a pod connects to a VIP and
// its backend is on the same bridge, the bridge switches the reply. Without br_netfilter
// conntrack does not see it, and its source remains the backend's address.
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
			all = append(all, Obstacle{Code: BridgeBypass, About: name + " " + w.name, Message: fmt.Sprintf(
				"%s is 0 or absent: a pod on bridge %s that asks an address and is given another pod on it gets no reply that it understands; load the module br_netfilter and set the variable to 1",
				name, w.name)})
		}
	}
	return all
}

// enumerate joins names for a sentence; of more than five it lists the first five.
func enumerate(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
