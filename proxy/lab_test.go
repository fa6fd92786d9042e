package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/internal/nstest"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A lab is a node, n1, in the test's own namespace, and what is around it:
//
//	client --- router --- node --- cali1 pod1
//	              |         |----- cali2 pod2
//	              |         '----- cni0 (bridge) pod3
//	            remote (a pod on node n2, which answers the client directly)
//
// All of it has IPv4 and IPv6. The router has routes for the VIPs,
// 192.0.2.0/24 and 2001:db8::/64, to the node, and the node's default route
// is the router: what the node does not stop loops between them.
type lab struct {
	t                                              *testing.T
	node, router, client, pod1, pod2, pod3, remote *nstest.NS
	names                                          map[netip.Addr]string
	heard                                          sync.Map // the datagrams that servers got, but for "who?"
}

// labAddr are the addresses, by the names that expectations use.
var labAddr = map[string][2]string{
	"client":  {"10.0.1.2", "fd00:1::2"},
	"node":    {"10.0.2.2", "fd00:2::2"},
	"second":  {"10.0.9.9", "fd00:9::9"}, // of the node, where a test adds it
	"remote":  {"10.244.2.11", "fd00:244:2::11"},
	"pod1":    {"10.244.1.11", "fd00:244:1::11"},
	"pod2":    {"10.244.1.12", "fd00:244:1::12"},
	"pod3":    {"10.244.1.13", "fd00:244:1::13"},
	"gateway": {"10.244.1.1", "fd00:244:1::1"}, // the node, towards its pods
	"far":     {"10.0.3.2", "fd00:3::2"},       // node n2, by which remote sends
	"vip":     {"192.0.2.1", "2001:db8::1"},
	"vip2":    {"192.0.2.2", "2001:db8::2"},
	"other":   {"192.0.2.99", "2001:db8::99"}, // in the pool, no VIP
	"mine":    {"192.0.2.77", "2001:db8::77"}, // in the pool by mistake: the node's own
}

// labServes are the ports that the lab answers on, over every protocol.
var labServes = map[string][]uint16{
	"pod1": {8080, 8081}, "pod2": {8080, 8081}, "pod3": {8080, 8081}, "remote": {8080, 8082}, "node": {9090},
}

func at(name string, family state.SetID) netip.Addr {
	return netip.MustParseAddr(labAddr[name][family])
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, node: nstest.Node(t), names: make(map[netip.Addr]string)}
	for name, both := range labAddr {
		for _, a := range both {
			l.names[netip.MustParseAddr(a)] = name
		}
	}
	l.router, l.client = nstest.New(t, "router"), nstest.New(t, "client")
	l.pod1, l.pod2, l.pod3, l.remote = nstest.New(t, "pod1"), nstest.New(t, "pod2"), nstest.New(t, "pod3"), nstest.New(t, "remote")
	l.uplinks()
	l.pod(l.pod1, "cali1")
	l.pod(l.pod2, "cali2")
	nstest.Link(t, l.node, "port3", l.pod3, "eth0")
	l.node.Bridge("cni0", "port3")
	l.node.Hairpin("port3")
	l.podAddresses(l.pod3, "cni0")
	for name, ports := range labServes {
		for _, port := range ports {
			for family := range state.SetID(2) {
				l.serve(l.ns(name), netip.AddrPortFrom(at(name, family), port))
			}
		}
	}
	return l
}

// uplinks joins client, node and remote with the router.
func (l *lab) uplinks() {
	l.t.Helper()
	for i, ns := range []*nstest.NS{l.client, l.node, l.remote} {
		port := fmt.Sprintf("eth%d", i+1)
		nstest.Link(l.t, l.router, port, ns, "eth0")
		l.router.Addr(port, fmt.Sprintf("10.0.%d.1/24", i+1), fmt.Sprintf("fd00:%d::1/64", i+1))
		ns.Addr("eth0", fmt.Sprintf("10.0.%d.2/24", i+1), fmt.Sprintf("fd00:%d::2/64", i+1))
		ns.Route("0.0.0.0/0", fmt.Sprintf("10.0.%d.1", i+1), "")
		ns.Route("::/0", fmt.Sprintf("fd00:%d::1", i+1), "")
	}
	l.router.Forward()
	l.node.Forward()
	l.remote.Addr("lo", "10.244.2.11/32", "fd00:244:2::11/128") // never its source by itself
	for _, ns := range []*nstest.NS{l.node, l.router} {
		// Tests are refused more often than a kernel likes to say so: limit no type
		// of ICMP, or one that there is not.
		ns.Sysctl("ipv4.icmp_ratemask", "0")
		ns.Sysctl("ipv6.icmp.ratemask", "255")
	}
	for prefix, via := range map[string]string{
		"192.0.2.0/24": "10.0.2.2", "2001:db8::/64": "fd00:2::2",
		"10.244.1.0/24": "10.0.2.2", "fd00:244:1::/64": "fd00:2::2",
		"10.244.2.0/24": "10.0.3.2", "fd00:244:2::/64": "fd00:3::2",
	} {
		l.router.Route(prefix, via, "")
	}
}

// pod joins a pod to the node by a routed veth pair.
func (l *lab) pod(ns *nstest.NS, iface string) {
	l.t.Helper()
	nstest.Link(l.t, l.node, iface, ns, "eth0")
	l.podAddresses(ns, iface)
}

func (l *lab) podAddresses(ns *nstest.NS, iface string) {
	l.t.Helper()
	l.node.Addr(iface, "10.244.1.1/32", "fd00:244:1::1/128")
	for family, bits := range []int{32, 128} {
		a := labAddr[ns.Name][family]
		ns.Addr("eth0", fmt.Sprintf("%s/%d", a, bits))
		l.node.Route(fmt.Sprintf("%s/%d", a, bits), "", iface)
		ns.Route([]string{"0.0.0.0/0", "::/0"}[family], labAddr["gateway"][family], "eth0")
	}
}

// serve answers on an address, over TCP, UDP and SCTP, with the name of the
// namespace and the address that the client has for it.
func (l *lab) serve(ns *nstest.NS, on netip.AddrPort) {
	l.t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	var err error
	ns.Do(func() {
		tcp, err = net.Listen("tcp", on.String())
		if err == nil {
			udp, err = net.ListenPacket("udp", on.String())
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { tcp.Close(); udp.Close() })
	l.serveSCTP(ns, on)
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go answer(c, ns.Name)
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if what := string(buf[:n]); what != "who?" {
				l.heard.Store(what, true)
			}
			fmt.Fprintf(writerTo{udp, from}, "%s saw %s", ns.Name, from)
		}
	}()
}

// answer answers each thing that is said, for as long as the client stays.
func answer(c net.Conn, name string) {
	defer c.Close()
	buf := make([]byte, 64)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		fmt.Fprintf(c, "%s saw %s", name, c.RemoteAddr())
	}
}

type writerTo struct {
	conn net.PacketConn
	to   net.Addr
}

func (w writerTo) Write(b []byte) (int, error) { return w.conn.WriteTo(b, w.to) }

// unresent is any answer, if it comes of the first packet: no second SYN has hidden
// that the first one was lost.
const unresent = "an answer to the first packet"

// patience is how long to wait for what should come.
func patience(want string) time.Duration {
	switch want {
	case "silence":
		return 150 * time.Millisecond
	case unresent:
		return 900 * time.Millisecond // the kernel resends a SYN after a second, RFC 6298 section 2
	default:
		return 3 * time.Second
	}
}

// probe sends from a namespace to an address and says what comes of it: "pod1
// saw client", "refused" or "silence". How long it waits depends on what is
// wanted.
func (l *lab) probe(from *nstest.NS, network string, to netip.AddrPort, want string) string {
	l.t.Helper()
	return l.probeFrom(from, network, 0, to, want)
}

// ports makes each question a flow of its own. For datagrams the kernel may well choose a
// port again; conntrack knows its flow still, and no rule is asked.
var ports atomic.Uint32

// freshPort is below the ports that the kernel chooses.
func freshPort() int { return 24000 + int(ports.Add(1)%8000) }

// probeFrom is probe with a source port.
func (l *lab) probeFrom(from *nstest.NS, network string, port int, to netip.AddrPort, want string) string {
	l.t.Helper()
	if port == 0 && network != "tcp" {
		port = freshPort()
	}
	if network == "sctp" {
		return l.associate(from, uint16(port), to, want)
	}
	var c net.Conn
	var err error
	from.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience(want))
		defer cancel()
		c, err = dialer(network, port).DialContext(ctx, network, to.String())
	})
	if err != nil {
		return outcome(err)
	}
	defer c.Close()
	return l.askFor(c, want)
}

func dialer(network string, port int) *net.Dialer {
	d := &net.Dialer{}
	if port != 0 && network == "tcp" {
		d.LocalAddr = &net.TCPAddr{Port: port}
	} else if port != 0 {
		d.LocalAddr = &net.UDPAddr{Port: port}
	}
	// The same port serves again at once.
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
		})
	}
	return d
}

// ask says something over a connection and names who answered whom.
func (l *lab) ask(c net.Conn) string { return l.askFor(c, "") }

func (l *lab) askFor(c net.Conn, want string) string {
	_ = c.SetDeadline(time.Now().Add(patience(want)))
	if _, err := c.Write([]byte("who?")); err != nil {
		return outcome(err)
	}
	buf := make([]byte, 128)
	n, err := c.Read(buf)
	if err != nil {
		return outcome(err)
	}
	return l.named(string(buf[:n]))
}

// named puts a name for the address in an answer.
func (l *lab) named(answer string) string {
	who, source, _ := strings.Cut(answer, " saw ")
	a, err := netip.ParseAddrPort(source)
	if err != nil {
		return answer
	}
	name, ok := l.names[a.Addr().Unmap()]
	if !ok {
		name = a.Addr().String()
	}
	return who + " saw " + name
}

func outcome(err error) string {
	switch {
	// EPERM is how a process learns at once that its own datagram was rejected.
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EPERM):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "silence"
	default:
		return err.Error()
	}
}

// pingID makes each ping a flow of its own.
var pingID atomic.Int32

// ping sends an echo request and says whether the address itself answers.
func (l *lab) ping(from *nstest.NS, to netip.Addr, want string) string {
	l.t.Helper()
	network, listen, proto := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, listen, proto = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var c *icmp.PacketConn
	var err error
	from.Do(func() { c, err = icmp.ListenPacket(network, listen) })
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	m := icmp.Message{Type: request, Body: &icmp.Echo{ID: int(pingID.Add(1)), Seq: 1, Data: []byte("fanfare")}}
	b, err := m.Marshal(nil)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return outcome(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience(want)))
	return awaitReply(c, proto, to, reply)
}

func awaitReply(c *icmp.PacketConn, proto int, to netip.Addr, reply icmp.Type) string {
	buf := make([]byte, 256)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return outcome(err)
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err == nil && m.Type == reply && from.String() == to.String() {
			return "reply"
		}
		if err == nil && quotes(m, proto) {
			return "refused"
		}
	}
}

// quotes says whether m is the error for a packet of the protocol that
// this namespace sent.
func quotes(m *icmp.Message, proto int) bool {
	e, ok := m.Body.(*icmp.DstUnreach)
	if !ok {
		return false
	}
	const protocol4, nextHeader6 = 9, 6 // offsets in the headers
	if m.Type == ipv6.ICMPTypeDestinationUnreachable {
		return len(e.Data) > nextHeader6 && int(e.Data[nextHeader6]) == proto
	}
	return len(e.Data) > protocol4 && int(e.Data[protocol4]) == proto
}

// connect opens a connection that stays open for the test.
func (l *lab) connect(from *nstest.NS, network string, port int, to netip.AddrPort) net.Conn {
	l.t.Helper()
	var c net.Conn
	var err error
	from.Do(func() {
		d := dialer(network, port)
		d.Timeout = patience("")
		c, err = d.Dial(network, to.String())
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

// forwarded is how many IPv4 packets a router has forwarded.
func (l *lab) forwarded(ns *nstest.NS) int {
	l.t.Helper()
	var b []byte
	var err error
	ns.Do(func() { b, err = os.ReadFile("/proc/thread-self/net/snmp") })
	if err != nil {
		l.t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	n, err := strconv.Atoi(values[slices.Index(names, "ForwDatagrams")])
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// nftables runs a script of nft on the node, as another program would.
func nftables(t testing.TB, script string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

// flows lists the conntrack entries of the node to an address.
func (l *lab) flows(vip netip.Addr) []conntrack.Flow {
	l.t.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.Close()
	all, err := conntrack.ListFlows(s, conntrack.RequestOf(slices.Values([]netip.Addr{vip})), func(f *conntrack.Flow) bool { return f.VIP == vip })
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

// backends are targets at pods by name, on port 8080.
func backends(family state.SetID, names ...string) []Backend {
	var all []Backend
	for _, name := range names {
		b := Backend{Addr: netip.AddrPortFrom(at(name, family), 8080), Node: "n1"}
		switch name {
		case "remote":
			b.Node = "n2"
		case "node":
			b.Addr = netip.AddrPortFrom(b.Addr.Addr(), 9090)
		}
		all = append(all, b)
	}
	return all
}
