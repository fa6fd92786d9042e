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
	ForwardingOff Code = "ForwardingOff" // The kernel does not forward packets.
	// rp_filter drops packets that arrive through another interface than the route back uses.
	ReversePath   Code = "ReversePath"
	ConntrackFull Code = "ConntrackFull" // conntrack is full, or nearly: new flows are dropped.
	BridgeBypass  Code = "BridgeBypass"  // A bridge carries replies past netfilter.
	Firewall      Code = "Firewall"      // Another program's chain drops traffic of the addresses.
	// Another program's rule excludes the traffic from conntrack, so that it cannot be translated.
	Untracked        Code = "Untracked"
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

// NearlyFull is the use of the conntrack table, in percent, from which it is an obstacle. An
// operator needs a warning before the table is full, because then new connections fail.
// NearlyFull is exported for the tests of package proxy.
const NearlyFull = 90

// judge returns the obstacles among the facts, sorted by Code and About, not nil.
func judge(f *facts) []Obstacle {
	all := []Obstacle{}
	all = append(all, slices.Concat(judgeForwarding(f), judgeReversePath(f), judgeConntrack(f), judgeBridges(f),
		judgePlugin(f.plugin))...)
	slices.SortFunc(all, Obstacle.compare)
	return all
}

// judgeConntrack finds a conntrack table that is full, or will be soon.
func judgeConntrack(f *facts) []Obstacle {
	if f.maxEntries == 0 || f.entries*100 < f.maxEntries*NearlyFull {
		return nil
	}
	const name = "net.netfilter.nf_conntrack_max"
	return []Obstacle{{Code: ConntrackFull, About: name, Message: fmt.Sprintf(
		"conntrack is more than %d %% full (%s is %d): once it is full, new flows are dropped; raise it", NearlyFull,
		name, f.maxEntries)}}
}

// judgeBridges finds bridges whose pods reach each other directly. If a pod connects to a VIP and
// its backend is on the same bridge, the bridge switches the reply. Without br_netfilter
// conntrack does not see it, and its source remains the backend's address.
func judgeBridges(f *facts) (all []Obstacle) {
	for _, w := range f.interfaces {
		for family := range state.SetID(2) {
			neighbours := slices.ContainsFunc(f.samples, func(s sample) bool {
				return s.family == family && s.out == w.name && s.onLink && !s.remote
			})
			if !w.bridge || !neighbours || f.bridgeNF[family] {
				continue
			}
			name := []string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"}[family]
			all = append(all, Obstacle{Code: BridgeBypass, About: name + " " + w.name, Message: fmt.Sprintf(
				"%s is 0 or absent: a pod on bridge %s that asks an address and is given another pod on it gets no "+
					"reply that it understands; load the module br_netfilter and set the variable to 1",
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
