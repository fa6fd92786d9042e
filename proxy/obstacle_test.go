package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/internal/nstest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// node is a node without obstacles: one uplink, a pod behind an interface of its own and
// one on a bridge, both families.
func node(change ...func(*facts)) *facts {
	both := [2]bool{true, true}
	f := &facts{
		families: both, forward4: true, forward6: true, bridgeNF: both,
		conntrack: conntrackFacts{count: 1000, max: 262144},
		interfaces: []iface{
			{name: "eth0", uplink: both, network: both, forward4: true},
			{name: "eth1.7", network: both, forward4: true},
			{name: "cali1", forward4: true},
			{name: "cni0", bridge: true, network: both, forward4: true},
		},
		samples: []sample{{out: "cali1"}, {out: "cni0", onLink: true}, {family: 1, out: "cali1"}, {family: 1, out: "cni0", onLink: true}},
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
	const plugin = "it translates the addresses of Services before netfilter sees a packet, so that Fanfare announces them and does not forward them, and cannot promise that what is announced is forwarded; to have Fanfare forward, set "
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
		}), "net.ipv4.ip_forward is 0, so that nothing that comes in by eth0, cali1, cni0 is forwarded over IPv4: set it to 1"},
		{"the variable for all is off and interfaces have their own", node(func(f *facts) { f.forward4 = false }), ""},
		{"one uplink", node(func(f *facts) { f.interfaces[0].forward4 = false }),
			"net.ipv4.conf.eth0.forwarding is 0, so that nothing that comes in by eth0 is forwarded over IPv4: set it to 1"},
		{"an interface that leads neither to clients nor to pods", node(func(f *facts) { f.interfaces[1].forward4 = false }), ""},
		{"nothing is forwarded over IPv6", node(func(f *facts) { f.forward6 = false }),
			"net.ipv6.conf.all.forwarding is 0, so that nothing that comes in by eth0, cali1, cni0 is forwarded over IPv6: set it to 1"},
		{"and the default route would go", node(func(f *facts) { f.forward6, f.interfaces[0].learnt6 = false, true }),
			"net.ipv6.conf.all.forwarding is 0, so that nothing that comes in by eth0, cali1, cni0 is forwarded over IPv6: set it to 1; before that set net.ipv6.conf.eth0.accept_ra to 2, or the default route that a router told eth0 is lost"},
		{"but each interface forwards", node(func(f *facts) {
			f.forward6 = false
			for i := range f.interfaces {
				f.interfaces[i].force6 = true
			}
		}), ""},
		{"IPv6 is unused", node(func(f *facts) { f.forward6, f.families[1] = false, false }), ""},

		{"rp_filter is strict and drops nothing", node(strict), ""},
		{"rp_filter drops, and there are two ways to the world", node(strict, func(f *facts) { f.reversed = true }),
			"rp_filter is 1 (strict) for eth0, eth1.7, and by it the kernel drops packets now that come in by one interface while the route to their source leads by another: if clients reach this node so, set net.ipv4.conf.eth0.rp_filter and net.ipv4.conf.all.rp_filter to 2 (loose)"},
		{"rp_filter drops what a pod forged", node(strict, func(f *facts) { f.reversed, f.interfaces[1].network[0] = true, false }), ""},
		{"packets were dropped before rp_filter became loose", node(func(f *facts) { f.reversed = true }), ""},

		{"conntrack is nearly full", node(func(f *facts) { f.conntrack.count = 240000 }),
			"conntrack is more than 90 % full (net.netfilter.nf_conntrack_max is 262144): once it is full, new flows are dropped; raise it"},
		{"conntrack makes room", node(func(f *facts) { f.conntrack.evicted = true }),
			"conntrack is full (net.netfilter.nf_conntrack_max is 262144): the kernel drops new flows, or makes room by forgetting others; raise it"},
		{"conntrack's room is unknown", node(func(f *facts) { f.conntrack = conntrackFacts{} }), ""},

		{"bridges do not call netfilter", node(func(f *facts) { f.bridgeNF[0] = false }),
			"net.bridge.bridge-nf-call-iptables is 0 or absent: a pod on bridge cni0 that asks an address and is given another pod on it gets no reply that it understands; load the module br_netfilter and set the variable to 1"},
		{"nor for IPv6", node(func(f *facts) { f.bridgeNF[1] = false }),
			"net.bridge.bridge-nf-call-ip6tables is 0 or absent: a pod on bridge cni0 that asks an address and is given another pod on it gets no reply that it understands; load the module br_netfilter and set the variable to 1"},
		{"this bridge does", node(func(f *facts) { f.bridgeNF[0], f.interfaces[3].called[0] = false, true }), ""},
		{"the bridge leads to other nodes", node(func(f *facts) { f.bridgeNF[0], f.samples[1].remote = false, true }), ""},
		{"pods on the bridge meet by their gateway", node(func(f *facts) { f.bridgeNF[0], f.samples[1].onLink = false, false }), ""},

		{"Calico by eBPF", node(func(f *facts) { f.plugin.calico = true }),
			"Calico is in its eBPF mode (interface bpfin.cali): " + plugin + "linuxDataplane to Nftables or Iptables (bpfEnabled to false)"},
		{"Cilium beside kube-proxy", node(func(f *facts) { f.plugin.cilium = true }), ""},
		{"Cilium instead of it", node(func(f *facts) { f.plugin.cilium, f.plugin.nodePort = true, true }),
			"Cilium replaces kube-proxy on this node: " + plugin + "kubeProxyReplacement to false and run kube-proxy"},
		{"Cilium, and no more can be seen", node(func(f *facts) { f.plugin.cilium, f.plugin.blind = true, "open /proc/kallsyms: permission denied" }),
			"Cilium is on this node, and whether it replaces kube-proxy cannot be seen (open /proc/kallsyms: permission denied): if it does, " + plugin + "kubeProxyReplacement to false and run kube-proxy"},
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

// A variable that is wrong swallows the traffic, is said to, and no longer when it
// is right.
func TestForwardingIsOff(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(packetState(LocalClients{}), portLocal)
		mustSet(t, p, s)
		checkObstacle(t, s, "", "")
		for _, tt := range []struct {
			name   string
			family state.SetID
			about  string
		}{
			{"ipv4.ip_forward", 0, "net.ipv4.ip_forward"},
			{"ipv4.conf.eth0.forwarding", 0, "net.ipv4.conf.eth0.forwarding"},
			{"ipv4.conf.cali1.forwarding", 0, "net.ipv4.conf.cali1.forwarding"},
			{"ipv6.conf.all.forwarding", 1, "net.ipv6.conf.all.forwarding"},
		} {
			l.node.Sysctl(tt.name, "0")
			l.shut(t, portLocal, tt.family)
			checkObstacle(t, s, ForwardingOff, tt.about)
			l.node.Sysctl(tt.name, "1")
			l.through(t, portLocal, "pod1 saw client")
			checkObstacle(t, s, "", "")
		}
	})
}

// The router sends what is for VIPs by a second link, while the node's way back is
// the first.
func TestReversePath(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(packetState(LocalClients{}), portLocal)
		s = State{Node: s.Node, VIPs: s.VIPs[:1], Owned: s.Owned[:1]}
		nstest.Link(t, l.router, "eth9", l.node, "eth1")
		l.router.Addr("eth9", "10.0.9.1/24")
		l.node.Addr("eth1", "10.0.9.2/24")
		l.router.Route("192.0.2.0/24", "10.0.9.2", "")
		for _, conf := range []string{"all", "eth0", "eth1"} {
			l.node.Sysctl("ipv4.conf."+conf+".rp_filter", "0")
		}
		mustSet(t, p, s)
		to := netip.AddrPortFrom(at("vip", 0), portLocal)
		ask := func(want string) {
			t.Helper()
			if got := l.probe(l.client, "tcp", to, want); got != want {
				t.Errorf("client to %s: %s, want %s", to, got, want)
			}
		}
		counted := &tallies{}
		look := func() []Obstacle {
			all, _ := surveyNode(s, counted).judge(ourPriority())
			return all
		}
		ask("pod1 saw client")
		l.node.Sysctl("ipv4.conf.eth1.rp_filter", "1")
		if all := look(); len(all) > 0 {
			t.Errorf("nothing was dropped yet, and in the way is %v", all)
		}
		ask("silence")
		if all := look(); len(all) != 1 || all[0].Code != ReversePath || !strings.HasPrefix(all[0].Message, "rp_filter is 1 (strict) for eth1, ") {
			t.Errorf("in the way: %v; want rp_filter of eth1", all)
		}
		l.node.Sysctl("ipv4.conf.eth1.rp_filter", "2")
		ask("pod1 saw client")
		if all := look(); len(all) > 0 {
			t.Errorf("rp_filter is loose, and in the way is %v", all)
		}
	})
}

// Two pods that are neighbours on a bridge: the one's reply to the other does not
// pass the rules, unless bridges call netfilter.
func TestBridgeBypass(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
			nstest.Missing(t, err.Error())
		}
		p := newProxy(t)
		server, client := nstest.New(t, "server"), nstest.New(t, "neighbour")
		nstest.Link(t, l.node, "veth1", server, "eth0")
		nstest.Link(t, l.node, "veth2", client, "eth0")
		l.node.Bridge("br0", "veth1", "veth2")
		l.node.Addr("br0", "10.77.0.1/24", "fd77::1/64")
		s := State{Node: "n1"}
		for family, addrs := range [][]string{{"10.77.0.2", "10.77.0.3", "10.77.0.1", "/24", "0.0.0.0/0"}, {"fd77::2", "fd77::3", "fd77::1", "/64", "::/0"}} {
			server.Addr("eth0", addrs[0]+addrs[3])
			client.Addr("eth0", addrs[1]+addrs[3])
			server.Route(addrs[4], addrs[2], "")
			client.Route(addrs[4], addrs[2], "")
			backend := netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 8080)
			l.serve(server, backend)
			l.names[netip.MustParseAddr(addrs[1])] = "neighbour"
			target := Target{Backends: []Backend{{Addr: backend, Node: "n1"}}, Remote: Preserve}
			s.VIPs = append(s.VIPs, &VIP{Addr: at("vip", state.SetID(family)), Frontends: []Frontend{{Protocol: TCP, Port: 80, External: target, Internal: target}}})
		}
		s.Clients = LocalClients{Bridge: "br0"}
		mustSet(t, p, s)
		for family, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
			to := netip.AddrPortFrom(at("vip", state.SetID(family)), 80)
			l.node.Sysctl("bridge.bridge-nf-call-iptables", "1")
			l.node.Sysctl("bridge.bridge-nf-call-ip6tables", "1")
			if got := l.probe(client, "tcp", to, "server saw neighbour"); got != "server saw neighbour" {
				t.Errorf("a neighbour to %s: %s", to, got)
			}
			checkObstacle(t, s, "", "")
			l.node.Sysctl("bridge."+name, "0")
			if got := l.probe(client, "tcp", to, "silence"); strings.Contains(got, "saw") {
				t.Errorf("a neighbour to %s: %s, without %s", to, got, name)
			}
			checkObstacle(t, s, BridgeBypass, "net.bridge."+name+" br0")
		}
	})
}

// Calico shows by an interface that it has in its eBPF mode alone.
func TestCalico(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		n, peer := nstest.Node(t), nstest.New(t, "peer")
		nstest.Link(t, n, "cali1", peer, "a")
		checkObstacle(t, State{}, "", "")
		nstest.Link(t, n, calicoInterface, peer, "b")
		checkObstacle(t, State{}, ForeignDataPath, "Calico")
	})
}

// Cilium shows by an interface, and its mode by the names of its programs. What such a
// program takes, no rule sees.
func TestCilium(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(packetState(LocalClients{}), portLocal)
		mustSet(t, p, s)
		peer := nstest.New(t, "peer")
		nstest.Link(t, l.node, ciliumInterface, peer, "a")
		l.through(t, portLocal, "pod1 saw client")
		takeArriving(t, "eth0", ciliumInterface, "tail_nodeport_n")
		l.shut(t, portLocal)
		checkObstacle(t, s, ForeignDataPath, "Cilium")
	})
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
		{"no programs", "ffffffffc0000000 t nf_hook_slow\n", "/proc/kallsyms names no BPF programs, as net.core.bpf_jit_kallsyms=0 has it", false},
	} {
		if loaded, blind := nodePortAmong(strings.NewReader(tt.symbols)); loaded != tt.loaded || blind != tt.blind {
			t.Errorf("%s: %t, %q", tt.what, loaded, blind)
		}
	}
}

// takeArriving has a BPF program send what comes in by one interface out of another.
func takeArriving(t *testing.T, in, out, name string) {
	t.Helper()
	from, err := rtnetlink.LinkByName(in)
	if err != nil {
		t.Fatal(err)
	}
	to, err := rtnetlink.LinkByName(out)
	if err != nil {
		t.Fatal(err)
	}
	// r1 = index; r2 = 0; bpf_redirect(r1, r2)
	program := loadProgram(t, name, 0xb7|1<<8|uint64(to.Attrs().Index)<<32, 0xb7|2<<8, 0x85|23<<32, bpfReturn)
	t.Cleanup(func() { unix.Close(program) })
	at := rtnetlink.QdiscAttrs{LinkIndex: from.Attrs().Index, Handle: rtnetlink.MakeHandle(0xffff, 0), Parent: rtnetlink.HANDLE_CLSACT}
	filter := rtnetlink.FilterAttrs{LinkIndex: from.Attrs().Index, Parent: rtnetlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1}
	if err := errors.Join(
		rtnetlink.QdiscAdd(&rtnetlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"}),
		rtnetlink.FilterAdd(&rtnetlink.BpfFilter{FilterAttrs: filter, Fd: program, Name: name, DirectAction: true}),
	); err != nil {
		nstest.Missing(t, fmt.Sprintf("a BPF program at an interface: %v", err))
	}
}

// bpfReturn is the last instruction of a program.
const bpfReturn = 0x95

// loadProgram gives the kernel a BPF program, and returns what holds it there.
func loadProgram(t *testing.T, name string, instructions ...uint64) (fd int) {
	t.Helper()
	code := []uint64{0xb7} // r0 = 0
	for _, i := range instructions {
		code = append(code, binary.NativeEndian.Uint64(binary.LittleEndian.AppendUint64(nil, i)))
	}
	license := []byte("Apache-2.0\x00")
	attr := struct { // union bpf_attr of BPF_PROG_LOAD
		kind, count          uint32
		code, license        uint64
		logLevel, logSize    uint32
		log                  uint64
		kernel, flags        uint32
		name                 [16]byte
		ifindex, expected    uint32
		btf, functions       uint32
		functionInfo         uint64
		functionCount, lines uint32
	}{
		kind: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(code)),
		code: uint64(uintptr(unsafe.Pointer(&code[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	copy(attr.name[:], name)
	r, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		nstest.Missing(t, fmt.Sprintf("load a BPF program: %v", errno))
	}
	return int(r)
}

// What cannot be read is said, and stops nothing.
func TestUnseen(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		withoutRights(t)
		s := surveyNode(State{}, &tallies{})
		if _, err := nfnl.Dial(); errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
		s.judge(priorityOurNAT)
		if got := strings.Join(s.unseen, "\n"); !strings.Contains(got, "chains of nftables: ") || !strings.Contains(got, "packets dropped by conntrack: ") {
			t.Errorf("not seen without rights: %q", got)
		}
	})
}

// fillConntrack adds the entries of these numbers, which nothing can evict.
func fillConntrack(t *testing.T, n, want int) {
	t.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const (
		ctNew      = 0
		ctaTimeout = 7
		batch      = 2000
		status     = 1<<1 | 1<<2 | 1<<3 // seen reply, assured, confirmed
	)
	tuple := func(e *nfnl.Encoder, kind uint16, from, to uint32, sport, dport uint16) {
		at := e.Open(kind)
		ip := e.Open(ctaTupleIP)
		e.Uint32(ctaIPv4Src, from)
		e.Uint32(ctaIPv4Dst, to)
		e.Close(ip)
		proto := e.Open(ctaTupleProto)
		e.Bytes(ctaProtoNum, []byte{unix.IPPROTO_UDP})
		e.Bytes(ctaProtoSrc, binary.BigEndian.AppendUint16(nil, sport))
		e.Bytes(ctaProtoDst, binary.BigEndian.AppendUint16(nil, dport))
		e.Close(proto)
		e.Close(at)
	}
	for n < want {
		var e nfnl.Encoder
		for range min(batch, want-n) {
			from, port := uint32(0x0a630000)+uint32(n>>14), uint16(1+n&(1<<14-1))
			s.Seq++
			e.Message(unix.NFNL_SUBSYS_CTNETLINK, ctNew, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, s.Seq, unix.AF_INET, func() {
				tuple(&e, ctaTupleOrig, from, 0x0a640001, port, 53)
				tuple(&e, ctaTupleReply, 0x0a640001, from, 53, port)
				e.Uint32(ctaStatus, status)
				e.Uint32(ctaTimeout, 600)
			})
			n++
		}
		if err := s.Send(e.B); err != nil {
			t.Fatal(err)
		}
		for r, err := range s.Replies(false) {
			if err == nil && r.Kind == unix.NLMSG_ERROR {
				err = r.Errno()
			}
			if err != nil && !errors.Is(err, unix.ENOMEM) {
				t.Fatal(err)
			}
		}
	}
}

// Conntrack fills up: it is said before new flows are dropped.
func TestConntrackFull(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(packetState(LocalClients{}), portLocal)
		mustSet(t, p, s)
		b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			t.Fatal(err)
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil || most > 1<<19 {
			nstest.Missing(t, fmt.Sprintf("conntrack holds %d flows here (%v), too many to fill it in a test", most, err))
		}
		l.through(t, portLocal, "pod1 saw client")
		checkObstacle(t, s, "", "")
		fillConntrack(t, 0, most*nearlyFull/100)
		l.through(t, portLocal, "pod1 saw client")
		checkObstacle(t, s, ConntrackFull, "net.netfilter.nf_conntrack_max")
		// Once it is nearly full the kernel clears away the entries of ended connections, in
		// its own time: those of before would leave room for the ones to come.
		l.forget()
		fillConntrack(t, most*nearlyFull/100, most)
		counted := &tallies{}
		surveyNode(s, counted)
		l.shut(t, portLocal)
		if f := surveyNode(s, counted).facts; !f.conntrack.refused {
			t.Errorf("packets were dropped and the kernel's counters do not show it: %+v", f.conntrack)
		}
	})
}
