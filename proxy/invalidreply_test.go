package proxy

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Flags of TCP (RFC 9293, section 3.1).
const (
	fin byte = 1 << iota
	syn
	rst
	psh
	ack
)

// farAhead is outside of every window of the lab.
const farAhead = 1_000_000

// plainPort is a port of pods that belongs to no Service.
const plainPort = 7777

// An arrival is a TCP segment as a test sees it arrive.
type arrival struct {
	from             netip.Addr
	srcPort, dstPort uint16
	seq, ack         uint32
	flags            byte
}

// await returns the segments that arrive until one is the last, which it includes.
func await(t *testing.T, c net.PacketConn, what string, last func(arrival) bool) (all []arrival) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(proxytest.Patience("")))
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%s: %v, after %v", what, err, all)
		}
		if n < 20 {
			continue
		}
		addr, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
		s := arrival{
			from: addr.Unmap(), srcPort: binary.BigEndian.Uint16(buf), dstPort: binary.BigEndian.Uint16(buf[2:]),
			seq: binary.BigEndian.Uint32(buf[4:]), ack: binary.BigEndian.Uint32(buf[8:]), flags: buf[13],
		}
		if all = append(all, s); last(s) {
			return all
		}
	}
}

// A flow is a connection through the proxy, as the backend and the client see it.
type flow struct {
	conn            net.Conn
	backend, client *proxytest.RawTCP
	to              netip.AddrPort // as which the backend sees the client
	seq, ack        uint32         // of what the backend sends next
	answer          string
}

// raw is a RawTCP of either family.
func (l *lab) raw(ns *nstest.NS, family state.SetID) *proxytest.RawTCP {
	return &proxytest.RawTCP{Conn: l.Raw(ns, family, "tcp"), From: proxytest.At(ns.Name, family)}
}

// open connects the client to a port, and finds where the connection is.
func (l *lab) open(t *testing.T, family state.SetID, port uint16, backend *nstest.NS, answer string) *flow {
	t.Helper()
	f := &flow{backend: l.raw(backend, family), client: l.raw(l.Client, family), answer: answer}
	f.conn = l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(proxytest.At("vip", family), port))
	if got := l.Ask(f.conn); got != answer {
		t.Fatalf("at first: %s; want %s", got, answer)
	}
	local := uint16(f.conn.LocalAddr().(*net.TCPAddr).Port)
	// The client acknowledges the answer, which is the last that the backend sent.
	got := await(t, f.backend.Conn, "the client's acknowledgement",
		func(s arrival) bool { return s.dstPort == 8080 && s.flags&psh != 0 })
	sent := await(t, f.client.Conn, "the answer",
		func(s arrival) bool { return s.dstPort == local && s.flags&psh != 0 })
	request, reply := got[len(got)-1], sent[len(sent)-1]
	f.to = netip.AddrPortFrom(request.from, request.srcPort)
	f.seq, f.ack = request.ack, request.seq+uint32(len("who?"))
	if reply.ack != f.ack {
		// Port numbers change on the way, sequence numbers do not.
		t.Fatalf("the backend expects %d, and says %d to the client", f.ack, reply.ack)
	}
	return f
}

// goesOn checks that the connection still works.
func (l *lab) goesOn(t *testing.T, f *flow, after string) {
	t.Helper()
	if got := l.Ask(f.conn); got != f.answer {
		t.Errorf("after %s: %s; want %s", after, got, f.answer)
	}
}

// wrong are segments of a backend that conntrack finds invalid.
var wrong = []struct {
	name  string
	flags byte
	ahead uint32
}{
	{"a segment far ahead of the window", psh | ack, farAhead},
	{"SYN and FIN", syn | fin, 0},
	{"a reset far ahead of the window", rst | ack, farAhead},
}

// A segment of a local backend that conntrack does not translate does not reach the client, which
// would answer from its port, and so end the connection.
func TestInvalidRepliesOfPodsVanish(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		mustSet(t, newProxy(t), proxytest.PacketState(LocalClients{}))
		for family := range state.SetID(2) {
			for _, w := range wrong {
				f := l.open(t, family, proxytest.PortLocal, l.Pod1, "pod1 saw client")
				f.backend.SendAt(t, f.to.Addr(), 8080, f.to.Port(), w.flags, f.seq+w.ahead, f.ack)
				l.arrives(t, f.backend, f.client, w.name)
				l.goesOn(t, f, w.name)
			}
		}
	})
}

// With nf_conntrack_tcp_be_liberal, no segment is outside of a window: conntrack translates it, and
// the client judges it.
func TestLiberalConntrackTranslatesReplies(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		l.Node.Sysctl("netfilter.nf_conntrack_tcp_be_liberal", "1")
		mustSet(t, newProxy(t), proxytest.PacketState(LocalClients{}))
		for family := range state.SetID(2) {
			f := l.open(t, family, proxytest.PortLocal, l.Pod1, "pod1 saw client")
			f.backend.SendAt(t, f.to.Addr(), 8080, f.to.Port(), psh|ack, f.seq+farAhead, f.ack)
			all := await(t, f.client.Conn, "the segment", func(s arrival) bool { return s.seq == f.seq+farAhead })
			if got := all[len(all)-1].from; got != proxytest.At("vip", family) {
				t.Errorf("it comes from %s; want the VIP", got)
			}
			l.goesOn(t, f, "a segment far ahead of the window")
		}
	})
}

// With br_netfilter, replies of a pod behind a bridge come to prerouting before the fast path takes
// them. Conntrack has not seen the flow and finds them invalid, but they must go on.
func TestFastPathOfBridgedPods(t *testing.T) {
	onFastPath(t, func(t *testing.T) {
		l := newLab(t)
		for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
			l.Node.Sysctl("bridge."+name, "1")
		}
		l.Node.Sysctl("netfilter.nf_conntrack_tcp_loose", "0")
		s := State{Node: "n1"}
		for family := range state.SetID(2) {
			to := state.Target{Backends: proxytest.Backends(family, "pod3")}
			v := &state.VIP{
				Addr:      proxytest.At("vip", family),
				Frontends: []state.Frontend{{Protocol: TCP, Port: 80, External: to, Internal: to}},
			}
			s.VIPs = proxytest.WithVIPs(s.VIPs, v)
		}
		mustSet(t, newProxy(t), s)
		for family := range state.SetID(2) {
			conn := l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(proxytest.At("vip", family), 80))
			if got := l.Ask(conn); got != "pod3 saw client" {
				t.Fatal(got)
			}
		}
	})
}

// arrives sends a marker from a port of no Service, an invalid packet too, and checks that nothing
// of the same address arrives before it.
func (l *lab) arrives(t *testing.T, from, at *proxytest.RawTCP, before string) {
	t.Helper()
	marker := uint16(proxytest.FreshPort())
	to := at.From
	from.SendAt(t, to, plainPort, marker, rst, 1, 0)
	for _, s := range await(t, at.Conn, "a reset from a port of no Service",
		func(s arrival) bool { return s.dstPort == marker }) {
		if s.from == from.From && s.dstPort != marker {
			t.Errorf("%s arrives: %+v", before, s)
		}
	}
}

// A segment of a remote backend that conntrack does not translate is for the node itself, which does
// not answer with a reset.
func TestInvalidRepliesToTheNodeVanish(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		mustSet(t, newProxy(t), proxytest.PacketState(LocalClients{}))
		for family := range state.SetID(2) {
			for _, w := range wrong {
				f := l.open(t, family, proxytest.PortRemote, l.Remote, "remote saw node")
				f.backend.SendAt(t, f.to.Addr(), 8080, f.to.Port(), w.flags, f.seq+w.ahead, f.ack)
				marker := uint16(proxytest.FreshPort())
				f.backend.SendAt(t, f.to.Addr(), marker, plainPort, syn, 1, 0) // the node refuses it
				for _, s := range await(t, f.backend.Conn, "a refusal",
					func(s arrival) bool { return s.dstPort == marker }) {
					if s.dstPort == 8080 && s.flags&rst != 0 {
						t.Errorf("the node answers %s by a reset: %+v", w.name, s)
					}
				}
				l.goesOn(t, f, w.name)
			}
		}
	})
}

// What conntrack does not know of vanishes only from the ports of backends, and for as long as
// they are: routes of others may be asymmetric.
func TestOtherInvalidPacketsPass(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		for family := range state.SetID(2) {
			client, pod1, pod2, node := l.raw(l.Client, family), l.raw(l.Pod1, family), l.raw(l.Pod2, family),
				l.raw(l.Node, family)
			stray := func(from *proxytest.RawTCP, port uint16, flags byte) bool {
				to, marker := uint16(proxytest.FreshPort()), uint16(proxytest.FreshPort())
				from.SendAt(t, client.From, port, to, flags, 1, 1)
				from.SendAt(t, client.From, plainPort, marker, rst, 1, 0)
				all := await(t, client.Conn, "the marker", func(s arrival) bool { return s.dstPort == marker })
				return slices.ContainsFunc(all, func(s arrival) bool { return s.dstPort == to })
			}
			for _, tc := range []struct {
				name   string
				from   *proxytest.RawTCP
				port   uint16
				flags  byte
				passes bool
			}{
				{"a late reset of a backend", pod1, 8080, rst, false},
				{"SYN and FIN of a backend", pod1, 8080, syn | fin, false},
				{"the second packet of a connection whose first took another path", pod1, 8080, syn | ack, true},
				{"a late reset from another port", pod1, 8081, rst, true},
				{"a late reset of a pod that is no backend", pod2, 8080, rst, true},
				{"a late reset of a backend that is a process of the host", node, 9090, rst, false},
				{"a late reset of the host", node, 9091, rst, true},
			} {
				if got := stray(tc.from, tc.port, tc.flags); got != tc.passes {
					t.Errorf("%s: passes %t; want %t", tc.name, got, tc.passes)
				}
			}
			for direct, want := range map[netip.AddrPort]string{
				netip.AddrPortFrom(pod1.From, 8080): "pod1 saw client",
				netip.AddrPortFrom(node.From, 9090): "node saw client",
			} {
				if got := l.Probe(l.Client, "tcp", direct, want); got != want {
					t.Errorf("directly to %s: %s; want %s", direct, got, want)
				}
			}
		}
		mustSet(t, p, State{Node: "n1", Owned: s.Owned})
		for family := range state.SetID(2) {
			l.arrivesFrom8080(t, family)
		}
	})
}

// Data of an SCTP association that does not exist is invalid, too.
func TestInvalidRepliesOverSCTPVanish(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		mustSet(t, newProxy(t), proxytest.PacketState(LocalClients{}))
		for family := range state.SetID(2) {
			to := proxytest.At("client", family)
			client := l.Raw(l.Client, family, "132")
			for _, pod := range []*nstest.NS{l.Pod1, l.Pod2} {
				data, marker := uint16(proxytest.FreshPort()), uint16(proxytest.FreshPort())
				c := l.Raw(pod, family, "132")
				for _, b := range [][]byte{proxytest.SCTPData(8080, data), proxytest.SCTPData(plainPort, marker)} {
					if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
						t.Fatal(err)
					}
				}
				all := await(t, client, "the marker", func(s arrival) bool { return s.dstPort == marker })
				got := slices.ContainsFunc(all, func(s arrival) bool { return s.dstPort == data })
				if want := pod == l.Pod2; got != want {
					t.Errorf("data of %s arrives: %t; want %t", pod.Name, got, want)
				}
			}
		}
	})
}

// arrivesFrom8080 checks that a late reset of pod1 passes.
func (l *lab) arrivesFrom8080(t *testing.T, family state.SetID) {
	t.Helper()
	client, pod1 := l.raw(l.Client, family), l.raw(l.Pod1, family)
	to := uint16(proxytest.FreshPort())
	pod1.SendAt(t, client.From, 8080, to, rst, 1, 1)
	await(t, client.Conn, "a late reset of a former backend", func(s arrival) bool { return s.dstPort == to })
}

// VIPs share the sets of replies: an element stays until the last VIP with its backend goes.
func TestRepliesOfASharedBackend(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		one := proxytest.PacketState(LocalClients{})
		both := one
		for family := range state.SetID(2) {
			v := *one.VIP(proxytest.At("vip", family))
			v.Addr = proxytest.At("vip2", family)
			both.VIPs = proxytest.WithVIPs(both.VIPs, &v)
		}
		for _, s := range []State{one, both, one} {
			mustSet(t, p, s)
			checkKernel(t, s)
			for family := range state.SetID(2) {
				pod1, client := l.raw(l.Pod1, family), l.raw(l.Client, family)
				pod1.SendAt(t, client.From, 8080, uint16(proxytest.FreshPort()), rst, 1, 1)
				l.arrives(t, pod1, client, "a late reset")
			}
		}
	})
}

// A change without any other element, such as of a weight that counts as one anyway, is counted, too.
func TestRepliesAfterAChangeWithoutElements(t *testing.T) {
	onEach(t, func(t *testing.T) {
		newLab(t)
		p := newProxy(t)
		vip := func(name string, weight uint16) *state.VIP {
			to := state.Target{Backends: proxytest.Backends(0, "pod1")}
			weighted := state.Target{Backends: proxytest.Backends(0, "pod1")}
			weighted.Backends[0].Weight = weight
			return &state.VIP{
				Addr: proxytest.At(name, 0), Frontends: []state.Frontend{{Protocol: TCP, Port: 80, External: to,
					Internal: weighted}},
			}
		}
		stays := vip("vip2", 0)
		for _, vips := range []state.VIPs{proxytest.VIPsOf(vip("vip", 0), stays),
			proxytest.VIPsOf(vip("vip", 1), stays), proxytest.VIPsOf(stays)} {
			s := State{Node: "n1", VIPs: vips}
			mustSet(t, p, s)
			checkKernel(t, s)
		}
	})
}

// Errors of a backend about what conntrack does not know vanish, but those about the size of
// packets: without these, a connection with asymmetric routes stalls.
func TestInvalidErrorsOfPodsVanish(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		mustSet(t, newProxy(t), proxytest.PacketState(LocalClients{}))
		for family := range state.SetID(2) {
			protocol := []string{"icmp", "ipv6-icmp"}[family]
			client := l.Raw(l.Client, family, protocol)
			for _, pod := range []*nstest.NS{l.Pod1, l.Pod2} {
				c := l.Raw(pod, family, protocol)
				for _, m := range icmpErrors(family, pod.Name) {
					b, err := m.Marshal(nil) // the kernel adds the checksum of IPv6
					if err == nil {
						_, err = c.WriteTo(b, &net.IPAddr{IP: proxytest.At("client", family).AsSlice()})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				want := 1
				if pod == l.Pod2 {
					want = 3
				}
				if got := l.errorsUntil(t, client, icmpErrors(family, pod.Name)); got != want {
					t.Errorf("%d errors of %s arrive; want %d", got, pod.Name, want)
				}
			}
		}
	})
}

// icmpErrors are messages about a flow that there is not; the last one is about its size.
func icmpErrors(family state.SetID, pod string) (all []icmp.Message) {
	about := quoted(family, pod)
	if family == 0 {
		return []icmp.Message{
			{Type: ipv4.ICMPTypeDestinationUnreachable, Code: 3, Body: &icmp.DstUnreach{Data: about}},
			{Type: ipv4.ICMPTypeTimeExceeded, Code: 1, Body: &icmp.TimeExceeded{Data: about}},
			{Type: ipv4.ICMPTypeDestinationUnreachable, Code: 4, Body: &icmp.DstUnreach{Data: about}},
		}
	}
	return []icmp.Message{
		{Type: ipv6.ICMPTypeDestinationUnreachable, Code: 4, Body: &icmp.DstUnreach{Data: about}},
		{Type: ipv6.ICMPTypeTimeExceeded, Code: 1, Body: &icmp.TimeExceeded{Data: about}},
		{Type: ipv6.ICMPTypePacketTooBig, Body: &icmp.PacketTooBig{MTU: 1280, Data: about}},
	}
}

// quoted is the head of a datagram from the client to a pod.
func quoted(family state.SetID, pod string) []byte {
	src, dst := proxytest.At("client", family).AsSlice(), proxytest.At(pod, family).AsSlice()
	udp := []byte{0x1f, 0x40, 0x1f, 0x90, 0, 8, 0, 0} // port 8000 to 8080
	if family == 0 {
		head := append([]byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0}, append(src, dst...)...)
		return append(head, udp...)
	}
	head := append([]byte{0x60, 0, 0, 0, 0, 8, 17, 64}, append(src, dst...)...)
	return append(head, udp...)
}

// errorsUntil counts the messages that arrive until the last of these does.
func (l *lab) errorsUntil(t *testing.T, c net.PacketConn, all []icmp.Message) (n int) {
	t.Helper()
	kind := func(m icmp.Message) string { return fmt.Sprint(m.Type, m.Code) }
	_ = c.SetReadDeadline(time.Now().Add(proxytest.Patience("")))
	buf := make([]byte, 2048)
	for {
		size, _, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatalf("the error about a packet's size: %v", err)
		}
		m, err := icmp.ParseMessage(map[bool]int{true: 1, false: 58}[all[0].Type.Protocol() == 1], buf[:size])
		if err != nil || !slices.ContainsFunc(all, func(w icmp.Message) bool { return kind(w) == kind(*m) }) {
			continue
		}
		if n++; kind(*m) == kind(all[len(all)-1]) {
			return n
		}
	}
}
