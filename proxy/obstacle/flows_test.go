package obstacle

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

func (f Flows) String() string {
	var names []string
	for family, name := range []string{"4", "6"} {
		for to, text := range []string{"pods", "own", "others"} {
			if f.Has(state.SetID(family), Destination(to)) {
				names = append(names, name+" "+text)
			}
		}
	}
	return strings.Join(names, ", ")
}

// Forwarding is certainly off if requests arrive only by interfaces that do not forward, or
// replies do. With one interface that forwards it is not certain.
func TestForwardingBlocks(t *testing.T) {
	off := func(names ...string) func(*facts) {
		return func(f *facts) {
			for i := range f.interfaces {
				for _, n := range names {
					if f.interfaces[i].name == n {
						f.interfaces[i].forward4 = false
					}
				}
			}
		}
	}
	remote := func(f *facts) { f.samples = append(f.samples, sample{out: "eth0", remote: true}) }
	for _, tt := range []struct {
		what string
		is   *facts
		want string
	}{
		{"nothing", node(), ""},
		{"all of IPv4", node(off("eth0", "eth1.7", "cali1", "cni0"), func(f *facts) { f.forward4 = false }), "4 pods, 4 others"},
		{"all of IPv6", node(func(f *facts) { f.forward6 = false }), "6 pods, 6 others"},
		{"IPv6, and an interface of clients forwards", node(func(f *facts) { f.forward6, f.interfaces[1].force6 = false, true }), "6 pods"},
		{"IPv6, and an interface of clients and one of pods forward", node(func(f *facts) { f.forward6, f.interfaces[1].force6, f.interfaces[2].force6 = false, true, true }), ""},
		{"one of two interfaces of clients", node(off("eth0")), ""},
		{"one of two interfaces of clients, and that of replies", node(remote, off("eth0")), "4 others"},
		{"both interfaces of clients", node(off("eth0", "eth1.7")), "4 pods, 4 others"},
		{"one of two pods", node(off("cali1")), ""},
		{"both pods", node(off("cali1", "cni0")), "4 pods"},
		{"both pods, of more than were sampled", node(off("cali1", "cni0"), func(f *facts) { f.partial[0][ToPods] = true }), ""},
		{"both pods, and one is in the host's network", node(off("cali1", "cni0"), func(f *facts) { f.samples = append(f.samples, sample{own: true}) }), "4 pods"},
		{"a family without addresses", node(func(f *facts) { f.forward6, f.families[1] = false, false }), ""},
	} {
		var got Flows
		for _, o := range judge(tt.is) {
			got |= o.Blocks
		}
		if got.String() != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}

// What may pass, or passes by another way, is only reported.
func TestUncertainBlocksNothing(t *testing.T) {
	f := node(strict, func(f *facts) {
		f.reversed, f.Conntrack.Refused, f.bridgeNF = true, true, [2]bool{}
		f.plugin = pluginFacts{calico: true, cilium: true, nodePort: true}
	})
	all := judge(f)
	if len(all) < 5 {
		t.Fatalf("this test needs more obstacles than %v", all)
	}
	for _, o := range all {
		if o.Blocks != 0 {
			t.Errorf("%s blocks %s", o.Code, o.Blocks)
		}
	}
}

// FORWARD of iptables that could not be opened blocks the flows that no rule accepts.
func TestClosedForwardBlocks(t *testing.T) {
	const kubeProxy = "-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n-A FORWARD -j KUBE-FORWARD\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
	samples := func(f *facts) {
		f.samples = []sample{
			{out: "cali1", backend: netip.MustParseAddrPort("10.244.1.5:80"), vip: netip.MustParseAddrPort("192.0.2.1:80")},
			{out: "eth0", remote: true, backend: netip.MustParseAddrPort("10.244.2.5:80"), vip: netip.MustParseAddrPort("192.0.2.1:80")},
			{own: true, backend: netip.MustParseAddrPort("10.0.0.1:80"), vip: netip.MustParseAddrPort("192.0.2.2:80")},
		}
	}
	for _, tt := range []struct {
		what, policy, rules string
		closed              bool
		want                string
	}{
		{"policy", "DROP", "", true, "FORWARD: 4 pods, 4 others"},
		{"policy, before it is opened", "DROP", "", false, ""},
		{"policy, and kube-proxy", "DROP", kubeProxy, true, "FORWARD: 4 pods, 4 others"},
		{"last rule", "ACCEPT", "-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n", true, "FORWARD: 4 pods, 4 others"},
		{"policy, and Docker", "DROP", "-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -o docker0 -j DOCKER\n-A DOCKER-USER -j RETURN\n", true, "FORWARD: 4 pods, 4 others"},
		{"flannel accepts pods", "DROP", "-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT\n", true, ""},
		{"this node's pods are accepted", "DROP", "-A FORWARD -o cali+ -j ACCEPT\n-A FORWARD -i cali+ -j ACCEPT\n", true, "FORWARD: 4 others"},
		{"a mark of others", "DROP", "-A FORWARD -m mark --mark 0x1/0x1 -j ACCEPT\n-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n", true, ""},
		{"replies only", "DROP", "-A FORWARD -m conntrack --ctstate NEW -j ACCEPT\n", true, "FORWARD: 4 pods, 4 others"},
		{"kube-proxy's mark, which Fanfare sets, too", "DROP", "MARKED" + kubeProxy, true, ""},
		{"another chain", "ACCEPT", "-A FORWARD -j MINE\n-A MINE -j DROP\n", false, "MINE: 4 pods, 4 others"},
	} {
		save := "*filter\n:FORWARD " + tt.policy + " [0:0]\n:MINE - [0:0]\n:KUBE-FORWARD - [0:0]\n:KUBE-SERVICES - [0:0]\n:FLANNEL-FWD - [0:0]\n:DOCKER-USER - [0:0]\n:DOCKER - [0:0]\n" + tt.rules + "COMMIT\n"
		rules, marked := strings.CutPrefix(tt.rules, "MARKED")
		save = strings.Replace(save, tt.rules, rules, 1)
		var got []string
		for _, o := range judgeLegacy(iptables.Programs[0], save, node(samples, func(f *facts) { f.marked = marked }), tt.closed) {
			got = append(got, fmt.Sprintf("%s: %s", strings.Fields(o.About)[1], o.Blocks))
		}
		if text := strings.Join(got, "; "); text != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, text, tt.want)
		}
	}
}

// A new obstacle blocks flows once all looks have found it for a time, and at once if the family
// has had no addresses. At its end it blocks nothing.
func TestBlocking(t *testing.T) {
	all := Obstacle{Code: Firewall, About: "a", Blocks: forwarded(0)}
	part, six := all, Obstacle{Code: ForwardingOff, About: "b", Blocks: forwarded(1)}
	part.Blocks = FlowsTo(0, ToPods)
	warning := Obstacle{Code: ConntrackFull, About: "c"}
	none := []Obstacle{}
	for _, tt := range []struct {
		what  string
		looks [][]Obstacle // one each second
		fresh [2]bool      // at the last one
		want  string
	}{
		{"first look", [][]Obstacle{{all, six, warning}}, [2]bool{true, true}, "4 pods, 4 others, 6 pods, 6 others"},
		{"first look at IPv6", [][]Obstacle{none, {all, six}}, [2]bool{false, true}, "6 pods, 6 others"},
		{"new", [][]Obstacle{none, {all}}, [2]bool{}, ""},
		{"for a second", [][]Obstacle{none, {all}, {all}}, [2]bool{}, ""},
		{"for two seconds", [][]Obstacle{none, {all}, {all}, {all}}, [2]bool{}, "4 pods, 4 others"},
		{"with a gap", [][]Obstacle{{all}, none, {all}, {all}}, [2]bool{}, ""},
		{"more of it", [][]Obstacle{{part}, {part}, {all}, {all}}, [2]bool{}, "4 pods"},
		{"more of it, for two seconds", [][]Obstacle{{part}, {all}, {all}, {all}}, [2]bool{}, "4 pods, 4 others"},
		{"less of it", [][]Obstacle{{all}, {all}, {all}, {part}}, [2]bool{}, "4 pods"},
		{"gone", [][]Obstacle{{all}, {all}, {all}, none}, [2]bool{}, ""},
		{"only reported", [][]Obstacle{{warning}, {warning}, {warning}}, [2]bool{true, true}, ""},
	} {
		var found []finding
		at := time.Unix(0, 0)
		for i, look := range tt.looks {
			at = at.Add(time.Second)
			fresh := [2]bool{}
			if i == len(tt.looks)-1 {
				fresh = tt.fresh
			}
			found = findings(found, look, fresh, at)
		}
		var got Flows
		for _, o := range blocking(found, at.Add(-lookConfirm)) {
			got |= o.Blocks
		}
		if got.String() != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}

// A sampler reports which flows it left out.
func TestPartialSamples(t *testing.T) {
	var vips []*state.VIP
	for i := range 3 {
		b := state.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Node: []string{"n1", "n1", "n2"}[i]}
		v := &state.VIP{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		v.Frontends = []state.Frontend{{Protocol: state.TCP, Port: 80, External: state.Target{Backends: []state.Backend{b}}}}
		vips = append(vips, v)
	}
	s := state.State{Node: "n1", VIPs: state.VIPsOf(vips...)}
	if got, more := takeSamples(s, 2, 1); len(got) != 3 || more != (partial{}) {
		t.Errorf("room for all: %d, %v", len(got), more)
	}
	if got, more := takeSamples(s, 1, 1); len(got) != 2 || more != (partial{{ToPods: true, ToThisNode: true}}) {
		t.Errorf("too many local ones: %d, %v", len(got), more)
	}
	if got, more := takeSamples(s, 2, 0); len(got) != 2 || more != (partial{{ToOtherNodes: true}}) {
		t.Errorf("too many remote ones: %d, %v", len(got), more)
	}
}
