package obstacle

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// node is a node without obstacles: one uplink, a pod behind an interface of its own and
// one on a bridge, both families.
func node(change ...func(*facts)) *facts {
	both := [2]bool{true, true}
	f := &facts{
		families: both, forward4: true, forward6: true, bridgeNF: both,
		entries: 1000, maxEntries: 262144,
		interfaces: []iface{
			{name: "eth0", uplink: both, network: both, forward4: true},
			{name: "eth1.7", network: both, forward4: true},
			{name: "cali1", forward4: true},
			{name: "cni0", bridge: true, network: both, forward4: true},
		},
		samples: []sample{{out: "cali1"}, {out: "cni0", onLink: true}, {family: 1, out: "cali1"},
			{family: 1, out: "cni0", onLink: true}},
	}
	for _, c := range change {
		c(f)
	}
	return f
}

func strict(f *facts) {
	for i := range f.interfaces {
		f.interfaces[i].rpFilter = 1
	}
}

func TestJudge(t *testing.T) {
	const plugin = "it translates the addresses of Services before netfilter sees a packet, so that Fanfare " +
		"announces them and does not forward them, and cannot promise that what is announced is forwarded; to have " +
		"Fanfare forward, set "
	for _, tt := range []struct {
		what string
		is   *facts
		want string
	}{
		{"no obstacle", node(), ""},
		{"nothing is forwarded over IPv4", node(func(f *facts) {
			f.forward4 = false
			for i := range f.interfaces {
				f.interfaces[i].forward4 = false
			}
		}), "net.ipv4.ip_forward is 0, so that nothing that comes in by eth0, cali1, cni0 is forwarded " +
			"over IPv4: set it to 1"},
		{"the variable for all is off and interfaces have their own", node(func(f *facts) { f.forward4 = false }), ""},
		{"one uplink", node(func(f *facts) { f.interfaces[0].forward4 = false }),
			"net.ipv4.conf.eth0.forwarding is 0, so that nothing that comes in by eth0 is forwarded " +
				"over IPv4: set it to 1"},
		{"an interface that leads neither to clients nor to pods",
			node(func(f *facts) { f.interfaces[1].forward4 = false }), ""},
		{"nothing is forwarded over IPv6", node(func(f *facts) { f.forward6 = false }),
			"net.ipv6.conf.all.forwarding is 0, so that nothing that comes in by eth0, cali1, cni0 is forwarded over " +
				"IPv6: set it to 1; before that, set accept_ra to 2 for an interface whose default route is from " +
				"router advertisements, or it is lost"},
		{"but each interface forwards", node(func(f *facts) {
			f.forward6 = false
			for i := range f.interfaces {
				f.interfaces[i].force6 = true
			}
		}), ""},
		{"IPv6 is unused", node(func(f *facts) { f.forward6, f.families[1] = false, false }), ""},

		{"rp_filter is strict and drops nothing", node(strict), ""},
		{"rp_filter drops, and there are two ways to the world", node(strict, func(f *facts) { f.reversed = true }),
			"rp_filter is 1 (strict) for eth0, eth1.7, and by it the kernel drops packets now that come in by one " +
				"interface while the route to their source leads by another: if clients reach this node so, set " +
				"net.ipv4.conf.eth0.rp_filter and net.ipv4.conf.all.rp_filter to 2 (loose)"},
		{"rp_filter drops what a pod forged",
			node(strict, func(f *facts) { f.reversed, f.interfaces[1].network[0] = true, false }), ""},
		{"packets were dropped before rp_filter became loose", node(func(f *facts) { f.reversed = true }), ""},

		{"conntrack is nearly full", node(func(f *facts) { f.entries = 240000 }),
			"conntrack is more than 90 % full (net.netfilter.nf_conntrack_max is 262144): once it is full, new flows " +
				"are dropped; raise it"},
		{"conntrack's room is unknown", node(func(f *facts) { f.entries, f.maxEntries = 1, 0 }), ""},

		{"bridges do not call netfilter", node(func(f *facts) { f.bridgeNF[0] = false }),
			"net.bridge.bridge-nf-call-iptables is 0 or absent: a pod on bridge cni0 that asks an address and is " +
				"given another pod on it gets no reply that it understands; load the module br_netfilter and " +
				"set the variable to 1"},
		{"nor for IPv6", node(func(f *facts) { f.bridgeNF[1] = false }),
			"net.bridge.bridge-nf-call-ip6tables is 0 or absent: a pod on bridge cni0 that asks an address and is " +
				"given another pod on it gets no reply that it understands; load the module br_netfilter and " +
				"set the variable to 1"},
		{"the bridge leads to other nodes", node(func(f *facts) { f.bridgeNF[0], f.samples[1].remote = false, true }),
			""},
		{"pods on the bridge meet by their gateway",
			node(func(f *facts) { f.bridgeNF[0], f.samples[1].onLink = false, false }), ""},

		{"Calico by eBPF", node(func(f *facts) { f.plugin.calico = true }),
			"Calico is in its eBPF mode (interface bpfin.cali): " + plugin +
				"linuxDataplane to Nftables or Iptables (bpfEnabled to false)"},
		{"Cilium beside kube-proxy", node(func(f *facts) { f.plugin.cilium = true }), ""},
		{"Cilium instead of it", node(func(f *facts) { f.plugin.cilium, f.plugin.nodePort = true, true }),
			"Cilium replaces kube-proxy on this node: " + plugin + "kubeProxyReplacement to false and run kube-proxy"},
		{"Cilium, and no more can be seen", node(func(f *facts) {
			f.plugin.cilium, f.plugin.blind = true, "open /proc/kallsyms: permission denied"
		}),
			"Cilium is on this node, and whether it replaces kube-proxy cannot be seen (open /proc/kallsyms: " +
				"permission denied): if it does, " + plugin + "kubeProxyReplacement to false and run kube-proxy"},
	} {
		var got []string
		for _, o := range judge(tt.is) {
			got = append(got, o.Message)
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, "\n")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.what, diff)
		}
	}
}

// A machine has one list of symbols, whatever tests run on it: what others load must
// not decide.
func TestNodePortAmong(t *testing.T) {
	const kernel = "ffffffffc0000000 t nf_hook_slow\n0000000000000000 t bpf_prog_6deef7357e7b4530\t[bpf]\n"
	for _, tt := range []struct {
		what, symbols, blind string
		loaded               bool
	}{
		{"other programs", kernel + "0 t bpf_prog_1_tail_handle_ipv\t[bpf]\n", "", false},
		{"with types", kernel + "0 t bpf_prog_2_tail_nodeport_nat_ingress_ipv4\t[bpf]\n", "", true},
		{"without", kernel + "0 t bpf_prog_2_tail_nodeport_n\t[bpf]\n", "", true},
		{"a function of the kernel", kernel + "0 t x_tail_nodeport_x\n", "", false},
		{"no programs", "ffffffffc0000000 t nf_hook_slow\n",
			"/proc/kallsyms names no BPF programs: net.core.bpf_jit_harden is not 0, or bpf_jit_kallsyms is 0", false},
	} {
		if loaded, blind := nodePortAmong([]byte(tt.symbols)); loaded != tt.loaded || blind != tt.blind {
			t.Errorf("%s: %t, %q", tt.what, loaded, blind)
		}
	}
}
