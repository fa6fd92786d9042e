package obstacle

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
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
		{"all of IPv4", node(off("eth0", "eth1.7", "cali1", "cni0"), func(f *facts) { f.forward4 = false }),
			"4 pods, 4 others"},
		{"all of IPv6", node(func(f *facts) { f.forward6 = false }), "6 pods, 6 others"},
		{"IPv6, and an interface of clients forwards",
			node(func(f *facts) { f.forward6, f.interfaces[1].force6 = false, true }), "6 pods"},
		{"IPv6, and an interface of clients and one of pods forward",
			node(func(f *facts) { f.forward6, f.interfaces[1].force6, f.interfaces[2].force6 = false, true, true }),
			""},
		{"one of two interfaces of clients", node(off("eth0")), ""},
		{"one of two interfaces of clients, and that of replies", node(remote, off("eth0")), "4 others"},
		{"both interfaces of clients", node(off("eth0", "eth1.7")), "4 pods, 4 others"},
		{"one of two pods", node(off("cali1")), ""},
		{"both pods", node(off("cali1", "cni0")), "4 pods"},
		{"both pods, of more than were sampled",
			node(off("cali1", "cni0"), func(f *facts) { f.partial = FlowsTo(0, ToPods) }), ""},
		{"both pods, and one is in the host's network",
			node(off("cali1", "cni0"), func(f *facts) { f.samples = append(f.samples, sample{own: true}) }), "4 pods"},
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
		f.reversed, f.entries, f.bridgeNF = true, f.maxEntries, [2]bool{}
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

// FORWARD of iptables that could not be opened blocks all that is forwarded, unless a rule may accept
// it. Rules of kube-proxy, Docker and ufw accept other flows only.
func TestMayForward(t *testing.T) {
	const kubeProxy = "-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n-A FORWARD -j KUBE-FORWARD\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n-A KUBE-FORWARD -m comment --comment \"kubernetes " +
		"forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
	for _, tt := range []struct {
		what, rules string
		marked      bool // Fanfare sets kube-proxy's mark
		want        bool
	}{
		{"no rule", "", false, false},
		{"kube-proxy", kubeProxy, false, false},
		{"kube-proxy's mark, which Fanfare sets, too", kubeProxy, true, true},
		{"a rule that drops", "-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n", false, false},
		{"Docker", "-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j " +
			"ACCEPT\n-A FORWARD -o docker0 -j DOCKER\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n" +
			"-A DOCKER-USER -j RETURN\n-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp " +
			"--dport 80 -j ACCEPT\n", false, false},
		{"a network of Docker", "-A FORWARD -i br-0123456789ab ! -o br-0123456789ab -j ACCEPT\n", false, false},
		{"a bridge that may be the uplink", "-A FORWARD -i br-ex -j ACCEPT\n", false, true},
		{"all but Docker's", "-A FORWARD ! -o docker0 -j ACCEPT\n", false, true},
		{"ufw", "-A FORWARD -j ufw-before-forward\n-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED " +
			"-j ACCEPT\n-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT\n-A ufw-before-forward " +
			"-j ufw-user-forward\n", false, false},
		{"ufw with a rule of its user", "-A FORWARD -j ufw-before-forward\n-A ufw-before-forward -j " +
			"ufw-user-forward\n-A ufw-user-forward -i eth0 -j ACCEPT\n", false, true},
		{"flannel accepts pods", "-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT\n-A " +
			"FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT\n", false, true},
		{"a mark of others", "-A FORWARD -m mark --mark 0x1/0x1 -j ACCEPT\n-A FORWARD -m conntrack --ctstate " +
			"ESTABLISHED -j ACCEPT\n", false, true},
		{"new flows", "-A FORWARD -m conntrack --ctstate NEW -j ACCEPT\n", false, true},
		{"a program is asked", "-A FORWARD -j NFQUEUE --queue-num 1\n", false, true},
		{"a chain that nothing leads to", "-A FORWARD -j LOG\n-A MINE -j ACCEPT\n", false, false},
		{"chains that lead to each other", "-A FORWARD -g MINE\n-A MINE -j DOCKER\n-A DOCKER -j MINE\n", false, false},
	} {
		save := "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n"
		for _, chain := range []string{"MINE", "KUBE-FORWARD", "KUBE-SERVICES", "FLANNEL-FWD", "DOCKER-USER", "DOCKER",
			"ufw-before-forward", "ufw-user-forward"} {
			save += ":" + chain + " - [0:0]\n"
		}
		if got := mayForward(save+"-A INPUT -j ACCEPT\n"+tt.rules+"COMMIT\n", tt.marked); got != tt.want {
			t.Errorf("%s: %t", tt.what, got)
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
		var h history
		var blocking []Obstacle
		for i, look := range tt.looks {
			fresh := [2]bool{}
			if i == len(tt.looks)-1 {
				fresh = tt.fresh
			}
			blocking, h = h.confirm(look, fresh, time.Unix(int64(i), 0))
		}
		var got Flows
		for _, o := range blocking {
			got |= o.Blocks
		}
		if got.String() != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}

// A choice of samples reports which flows it left out.
func TestPartialSamples(t *testing.T) {
	var vips []*state.VIP
	for i := range 3 {
		b := state.Backend{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
			Node: []string{"n1", "n1", "n2"}[i],
		}
		v := &state.VIP{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		v.Frontends = []state.Frontend{{Protocol: state.TCP, Port: 80,
			External: state.Target{Backends: []state.Backend{b}}}}
		vips = append(vips, v)
	}
	s := state.State{Node: "n1", VIPs: proxytest.VIPsOf(vips...)}
	if got, more := takeSamples(s, 2, 1); len(got) != 3 || more != 0 {
		t.Errorf("room for all: %d, %v", len(got), more)
	}
	if got, more := takeSamples(s, 1, 1); len(got) != 2 || more != FlowsTo(0, ToPods)|FlowsTo(0, ToThisNode) {
		t.Errorf("too many local ones: %d, %v", len(got), more)
	}
	if got, more := takeSamples(s, 2, 0); len(got) != 2 || more != FlowsTo(0, ToOtherNodes) {
		t.Errorf("too many remote ones: %d, %v", len(got), more)
	}
}
