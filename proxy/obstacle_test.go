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

	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A variable that is wrong swallows the traffic, is said to, and no longer when it
// is right.
func TestForwardingIsOff(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
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
			l.Node.Sysctl(tt.name, "0")
			l.shut(t, proxytest.PortLocal, tt.family)
			checkObstacle(t, s, obstacle.ForwardingOff, tt.about)
			l.Node.Sysctl(tt.name, "1")
			l.through(t, proxytest.PortLocal, "pod1 saw client")
			checkObstacle(t, s, "", "")
		}
	})
}

// The router sends what is for VIPs by a second link, while the node's way back is
// the first.
func TestReversePath(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
		s = State{Node: s.Node, VIPs: proxytest.VIPsOf(s.VIPs.At(0)), Owned: s.Owned[:1]}
		nstest.Link(t, l.Router, "eth9", l.Node, "eth1")
		l.Router.Addr("eth9", "10.0.9.1/24")
		l.Node.Addr("eth1", "10.0.9.2/24")
		l.Router.Route("192.0.2.0/24", "10.0.9.2", "")
		for _, conf := range []string{"all", "eth0", "eth1"} {
			l.Node.Sysctl("ipv4.conf."+conf+".rp_filter", "0")
		}
		mustSet(t, p, s)
		to := netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal)
		ask := func(want string) {
			t.Helper()
			if got := l.Probe(l.Client, "tcp", to, want); got != want {
				t.Errorf("client to %s: %s, want %s", to, got, want)
			}
		}
		counted := &obstacle.Counter{}
		look := func() []obstacle.Obstacle {
			return obstacle.Collect(s, counted).Judge(ourPriority())
		}
		ask("pod1 saw client")
		l.Node.Sysctl("ipv4.conf.eth1.rp_filter", "1")
		if all := look(); len(all) > 0 {
			t.Errorf("nothing was dropped yet, and in the way is %v", all)
		}
		ask("silence")
		if all := look(); len(all) != 1 || all[0].Code != obstacle.ReversePath ||
			!strings.HasPrefix(all[0].Message, "rp_filter is 1 (strict) for eth1, ") {
			t.Errorf("in the way: %v; want rp_filter of eth1", all)
		}
		l.Node.Sysctl("ipv4.conf.eth1.rp_filter", "2")
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
		nstest.Link(t, l.Node, "veth1", server, "eth0")
		nstest.Link(t, l.Node, "veth2", client, "eth0")
		l.Node.Bridge("br0", "veth1", "veth2")
		l.Node.Addr("br0", "10.77.0.1/24", "fd77::1/64")
		s := State{Node: "n1"}
		for family, addrs := range [][]string{{"10.77.0.2", "10.77.0.3", "10.77.0.1", "/24", "0.0.0.0/0"},
			{"fd77::2", "fd77::3", "fd77::1", "/64", "::/0"}} {
			server.Addr("eth0", addrs[0]+addrs[3])
			client.Addr("eth0", addrs[1]+addrs[3])
			server.Route(addrs[4], addrs[2], "")
			client.Route(addrs[4], addrs[2], "")
			backend := netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 8080)
			l.Serve(server, backend)
			l.Names[netip.MustParseAddr(addrs[1])] = "neighbour"
			target := Target{Backends: []Backend{{Addr: backend, Node: "n1"}}, Remote: Preserve}
			s.VIPs = proxytest.WithVIPs(s.VIPs, &VIP{
				Addr:      proxytest.At("vip", state.SetID(family)),
				Frontends: []Frontend{{Protocol: TCP, Port: 80, External: target, Internal: target}},
			})
		}
		s.Clients = LocalClients{Bridge: "br0"}
		mustSet(t, p, s)
		for family, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
			to := netip.AddrPortFrom(proxytest.At("vip", state.SetID(family)), 80)
			l.Node.Sysctl("bridge.bridge-nf-call-iptables", "1")
			l.Node.Sysctl("bridge.bridge-nf-call-ip6tables", "1")
			if got := l.Probe(client, "tcp", to, "server saw neighbour"); got != "server saw neighbour" {
				t.Errorf("a neighbour to %s: %s", to, got)
			}
			checkObstacle(t, s, "", "")
			l.Node.Sysctl("bridge."+name, "0")
			if got := l.Probe(client, "tcp", to, "silence"); strings.Contains(got, "saw") {
				t.Errorf("a neighbour to %s: %s, without %s", to, got, name)
			}
			checkObstacle(t, s, obstacle.BridgeBypass, "net.bridge."+name+" br0")
		}
	})
}

// Calico shows by an interface that it has in its eBPF mode alone.
func TestCalico(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		n, peer := nstest.Node(t), nstest.New(t, "peer")
		nstest.Link(t, n, "cali1", peer, "a")
		checkObstacle(t, State{}, "", "")
		nstest.Link(t, n, obstacle.CalicoInterface, peer, "b")
		checkObstacle(t, State{}, obstacle.ForeignDataPath, "Calico")
	})
}

// OVN-Kubernetes shows by an interface, and that it leaves packets to the host by a chain.
func TestOVN(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		n, peer := nstest.Node(t), nstest.New(t, "peer")
		nstest.Link(t, n, "br-ex", peer, "a")
		checkObstacle(t, State{}, "", "")
		nstest.Link(t, n, obstacle.OVNInterface, peer, "b")
		checkObstacle(t, State{}, obstacle.ForeignDataPath, "OVN-Kubernetes")
		const table = "table inet ovn-kubernetes { chain %s { type nat hook postrouting priority 101; }; }"
		proxytest.NFT(t, fmt.Sprintf(table, "mgmtport-snat"))
		checkObstacle(t, State{}, obstacle.ForeignDataPath, "OVN-Kubernetes")
		proxytest.NFT(t, fmt.Sprintf(table, "ovn-kube-local-gw-masq"))
		checkObstacle(t, State{}, "", "")
	})
}

// Cilium shows by an interface, and its mode by the names of its programs. What such a
// program takes, no rule sees.
func TestCilium(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
		mustSet(t, p, s)
		peer := nstest.New(t, "peer")
		nstest.Link(t, l.Node, obstacle.CiliumInterface, peer, "a")
		l.through(t, proxytest.PortLocal, "pod1 saw client")
		takeArriving(t, "eth0", obstacle.CiliumInterface, "tail_nodeport_n")
		l.shut(t, proxytest.PortLocal)
		checkObstacle(t, s, obstacle.ForeignDataPath, "Cilium")
	})
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
	at := rtnetlink.QdiscAttrs{
		LinkIndex: from.Attrs().Index, Handle: rtnetlink.MakeHandle(0xffff, 0), Parent: rtnetlink.HANDLE_CLSACT,
	}
	filter := rtnetlink.FilterAttrs{
		LinkIndex: from.Attrs().Index, Parent: rtnetlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL,
		Priority: 1,
	}
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
	proxytest.InNamespace(t, func(t *testing.T) {
		proxytest.WithoutRights(t)
		s := obstacle.Collect(State{}, &obstacle.Counter{})
		if _, err := nfnl.Dial(); errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
		s.Judge(obstacle.PriorityNFTables)
		if got := strings.Join(s.Unseen, "\n"); !strings.Contains(got, "chains of nftables: ") {
			t.Errorf("not seen without rights: %q", got)
		}
	})
}

// Conntrack fills up: it is said before new flows are dropped.
func TestConntrackFull(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
		mustSet(t, p, s)
		b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			t.Fatal(err)
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil || most > 1<<19 {
			nstest.Missing(t, fmt.Sprintf("conntrack holds %d flows here (%v), too many to fill it in a test", most,
				err))
		}
		l.through(t, proxytest.PortLocal, "pod1 saw client")
		checkObstacle(t, s, "", "")
		proxytest.FillConntrack(t, 0, most*obstacle.NearlyFull/100)
		l.through(t, proxytest.PortLocal, "pod1 saw client")
		checkObstacle(t, s, obstacle.ConntrackFull, "net.netfilter.nf_conntrack_max")
		// Once it is nearly full the kernel clears away the entries of ended connections, in
		// its own time: those of before would leave room for the ones to come.
		l.forget()
		proxytest.FillConntrack(t, most*obstacle.NearlyFull/100, most)
		l.shut(t, proxytest.PortLocal)
		checkObstacle(t, s, obstacle.ConntrackFull, "net.netfilter.nf_conntrack_max")
	})
}
