package fastpath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// A lab is a node in the test's own namespace, with a client and pods:
//
//	client --- eth0 node cali1 --- pod1
//	                     cali2 --- pod2
//	                     cni0 (bridge) --- pod3
//
// All links have IPv4 and IPv6. The client has routes for the VIPs, 192.0.2.0/24 and
// 2001:db8::/64, to the node. Rules on the node count the packets that pass netfilter.
type lab struct {
	t                              *testing.T
	node, client, pod1, pod2, pod3 *nstest.NS
	dir                            string // for Options
	links                          map[string]netlink.Link
}

var labAddr = map[string][2]string{
	"client":  {"10.0.1.2", "fd00:1::2"},
	"client2": {"10.0.1.3", "fd00:1::3"},
	"node":    {"10.0.1.1", "fd00:1::1"},
	"gateway": {"10.244.1.1", "fd00:244:1::1"},
	"pod1":    {"10.244.1.11", "fd00:244:1::11"},
	"pod2":    {"10.244.1.12", "fd00:244:1::12"},
	"pod3":    {"10.244.1.13", "fd00:244:1::13"},
	"pod4":    {"10.244.1.14", "fd00:244:1::14"},
	"vip":     {"192.0.2.1", "2001:db8::1"},
	"vip2":    {"192.0.2.2", "2001:db8::2"},
}

var families = []int{0, 1}

func at(name string, family int) netip.Addr { return netip.MustParseAddr(labAddr[name][family]) }

func port(name string, family int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(at(name, family), port)
}

// nameAt returns the name of an address.
func nameAt(a netip.Addr) string {
	for name, both := range labAddr {
		if slices.Contains(both[:], a.String()) {
			return name
		}
	}
	return a.String()
}

// inNamespace runs f with a new lab.
func inNamespace(t *testing.T, f func(t *testing.T, l *lab)) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		nstest.Missing(t, err.Error())
	}
	t.Parallel()
	nstest.Run(t, func(t *testing.T) { f(t, newLab(t)) })
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{
		t: t, node: nstest.Node(t), client: nstest.New(t, "client"), dir: filepath.Join(nstest.BPF(t), "fanfare"),
		links: make(map[string]netlink.Link),
	}
	l.pod1, l.pod2, l.pod3 = nstest.New(t, "pod1"), nstest.New(t, "pod2"), nstest.New(t, "pod3")
	l.node.Forward()
	nstest.Link(t, l.node, "eth0", l.client, "eth0")
	l.node.Addr("eth0", "10.0.1.1/24", "fd00:1::1/64")
	l.client.Addr("eth0", "10.0.1.2/24", "fd00:1::2/64", "10.0.1.3/24", "fd00:1::3/64")
	for _, prefix := range []string{"192.0.2.0/24", "10.244.1.0/24"} {
		l.client.Route(prefix, "10.0.1.1", "")
	}
	for _, prefix := range []string{"2001:db8::/64", "fd00:244:1::/64"} {
		l.client.Route(prefix, "fd00:1::1", "")
	}
	l.node.Sysctl("ipv4.icmp_ratemask", "0")
	l.node.Sysctl("ipv6.icmp.ratemask", "255")
	l.veth(l.pod1, "cali1")
	l.veth(l.pod2, "cali2")
	nstest.Link(t, l.node, "port3", l.pod3, "eth0")
	l.node.Bridge("cni0", "port3")
	l.bridgeFilter("0")
	l.podAddresses(l.pod3, "cni0")
	for _, ns := range []*nstest.NS{l.pod1, l.pod2, l.pod3} {
		l.serve(ns)
	}
	l.nft(`table inet watch {
		counter vip { }
		counter pods { }
		chain prerouting {
			type filter hook prerouting priority -300
			ip daddr 192.0.2.0/24 counter name vip
			ip6 daddr 2001:db8::/64 counter name vip
			iifname { "cali1", "cali2", "cni0" } meta l4proto { tcp, udp } counter name pods
		}
		chain track { type filter hook forward priority 0; ct state invalid drop; }
	}`)
	return l
}

// bridgeFilter sets whether bridged packets pass netfilter's layer 3 hooks, if the kernel
// has br_netfilter.
func (l *lab) bridgeFilter(value string) {
	l.t.Helper()
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		return
	}
	l.node.Sysctl("bridge.bridge-nf-call-iptables", value)
	l.node.Sysctl("bridge.bridge-nf-call-ip6tables", value)
}

func (l *lab) veth(ns *nstest.NS, iface string) {
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
		ns.Route(labAddr["gateway"][family]+[]string{"/32", "/128"}[family], "", "eth0")
		ns.Route([]string{"0.0.0.0/0", "::/0"}[family], labAddr["gateway"][family], "eth0")
	}
}

// nft loads a ruleset.
func (l *lab) nft(text string) {
	l.t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("nft: %v: %s", err, out)
	}
}

// counted returns the packets of a counter on the node.
func (l *lab) counted(name string) int {
	l.t.Helper()
	out, err := exec.Command("nft", "list", "counter", "inet", "watch", name).CombinedOutput()
	if err != nil {
		l.t.Fatalf("nft: %v: %s", err, out)
	}
	_, after, _ := strings.Cut(string(out), "packets ")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// rules installs DNAT rules in place of package proxy's: packets to a frontend that pass
// netfilter go to a backend.
func (l *lab) rules(front, backend netip.AddrPort) {
	l.t.Helper()
	family, any := "ip", backend.String()
	if front.Addr().Is6() {
		family = "ip6"
	}
	l.nft(fmt.Sprintf(`table inet rules {
		chain prerouting { type nat hook prerouting priority -100; meta l4proto { tcp, udp } %s daddr %s th dport %d dnat %s to %s; }
	}`, family, front.Addr(), front.Port(), family, any))
}

// tracked returns the node's conntrack entries with an address of a VIP or pod.
func (l *lab) tracked() []string {
	l.t.Helper()
	var all []string
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		entries, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, e := range entries {
			if e.Forward.Protocol == TCP || e.Forward.Protocol == UDP {
				all = append(all, e.String())
			}
		}
	}
	return all
}

// bypassed checks that no packet has passed netfilter.
func (l *lab) bypassed() {
	l.t.Helper()
	if n := l.counted("vip"); n != 0 {
		l.t.Errorf("netfilter had %d packets to VIPs", n)
	}
	if n := l.counted("pods"); n != 0 {
		l.t.Errorf("netfilter had %d packets of pods", n)
	}
	if e := l.tracked(); len(e) != 0 {
		l.t.Errorf("conntrack tracks %s", strings.Join(e, "; "))
	}
}

// serve answers on ports 8080 and 8081 of a pod.
func (l *lab) serve(ns *nstest.NS) {
	l.t.Helper()
	for _, p := range []int{8080, 8081} {
		var tcp net.Listener
		var udp net.PacketConn
		var err, err2 error
		ns.Do(func() {
			tcp, err = net.Listen("tcp", fmt.Sprintf(":%d", p))
			udp, err2 = net.ListenPacket("udp", fmt.Sprintf(":%d", p))
		})
		if err := errors.Join(err, err2); err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { tcp.Close(); udp.Close() })
		go accept(tcp, ns.Name)
		go answer(udp, ns.Name)
	}
}

func accept(l net.Listener, name string) {
	nstest.Accept(l, func(c net.Conn) {
		buf := make([]byte, 1<<16)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s", reply(buf[:n], name, c.RemoteAddr()))
		}
	})
}

func answer(c net.PacketConn, name string) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(reply(buf[:n], name, from), from)
	}
}

// reply names the server and the client. A request for a number of bytes gets that many.
func reply(asked []byte, name string, from net.Addr) []byte {
	a := netip.MustParseAddrPort(from.String())
	out := []byte(fmt.Sprintf("%s saw %s", name, nameAt(a.Addr().Unmap())))
	if size, err := strconv.Atoi(strings.TrimSpace(string(asked))); err == nil && size > len(out) {
		out = append(out, slices.Repeat([]byte{' '}, size-len(out))...)
	}
	return out
}

// dial opens a connection or a UDP socket on the client; with fromPort 0, from any port.
func (l *lab) dial(network string, fromPort int, to netip.AddrPort) (net.Conn, error) {
	l.t.Helper()
	return l.dialFrom("client", network, fromPort, to)
}

func (l *lab) dialFrom(name, network string, fromPort int, to netip.AddrPort) (net.Conn, error) {
	l.t.Helper()
	family := 0
	if to.Addr().Is6() {
		family = 1
	}
	from := net.TCPAddrFromAddrPort(port(name, family, uint16(fromPort)))
	d := net.Dialer{LocalAddr: from}
	if network == "udp" {
		d.LocalAddr = (*net.UDPAddr)(from)
	}
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}
	var c net.Conn
	var err error
	l.client.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c, err = d.DialContext(ctx, network, to.String())
	})
	return c, err
}

func (l *lab) mustDial(network string, fromPort int, to netip.AddrPort) net.Conn {
	l.t.Helper()
	c, err := l.dial(network, fromPort, to)
	if err != nil {
		l.t.Fatalf("%s %s: %v", network, to, err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request and returns the reply, without trailing spaces.
func ask(c net.Conn, what string) string {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, what); err != nil {
		return outcome(err)
	}
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	if err != nil {
		return outcome(err)
	}
	return strings.TrimRight(string(buf[:n]), " ")
}

func outcome(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF):
		return "reset"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silence"
	}
	return err.Error()
}

// probe returns the reply to one request over a new connection.
func (l *lab) probe(network string, to netip.AddrPort) string {
	l.t.Helper()
	c, err := l.dial(network, 0, to)
	if err != nil {
		return outcome(err)
	}
	defer c.Close()
	return ask(c, "who?")
}

// state has a frontend on the VIP's port 80 for each protocol and family, with port 8080 of
// these backends.
func state(pods ...string) State {
	s := State{Outward: []string{"eth0"}}
	for _, family := range families {
		for _, vip := range []string{"vip", "vip2"} {
			v := &VIP{Addr: at(vip, family)}
			for _, proto := range []uint8{TCP, UDP} {
				v.Frontends = append(v.Frontends, front(port(vip, family, 80), proto, family, pods...))
			}
			s.VIPs = append(s.VIPs, v)
		}
	}
	return s
}

func front(a netip.AddrPort, proto uint8, family int, pods ...string) Frontend {
	f := Frontend{Addr: a, Protocol: proto, Take: true}
	for _, p := range pods {
		f.Backends = append(f.Backends, Backend{Addr: port(p, family, 8080), Weight: 1})
	}
	return f
}

// each returns s with all its frontends changed.
func each(s State, change func(*Frontend)) State {
	s.VIPs = slices.Clone(s.VIPs)
	for i, v := range s.VIPs {
		s.VIPs[i] = &VIP{Addr: v.Addr, Frontends: slices.Clone(v.Frontends)}
		for j := range v.Frontends {
			change(&s.VIPs[i].Frontends[j])
		}
	}
	return s
}

func (l *lab) options() Options {
	return Options{Dir: l.dir, Log: slog.New(slog.NewTextHandler(l.t.Output(), nil))}
}

func (l *lab) path() *Datapath {
	l.t.Helper()
	return l.pathWith(l.options())
}

func (l *lab) pathWith(o Options) *Datapath {
	l.t.Helper()
	p, err := New(l.t.Context(), o)
	if err != nil {
		var missing *os.SyscallError
		if errors.Is(err, unix.EPERM) || errors.As(err, &missing) {
			nstest.Missing(l.t, err.Error())
		}
		l.t.Fatalf("%+v", err)
	}
	var once sync.Once
	l.t.Cleanup(func() { once.Do(func() { p.Close() }) })
	return p
}

// set calls Shrink and Grow as the proxy does, without changing rules between them.
func (l *lab) set(p *Datapath, s State) {
	l.t.Helper()
	if err := p.Shrink(l.t.Context(), s); err != nil {
		l.t.Fatal(err)
	}
	if err := p.Grow(l.t.Context(), s); err != nil {
		l.t.Fatal(err)
	}
	l.await("the flows of the rules to be taken over", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.seeding) == 0
	})
}

// await waits until f is true.
func (l *lab) await(what string, f func() bool) {
	l.t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("timeout: %s", what)
		}
	}
}

// flows returns all flows of the table, by client.
func (l *lab) flows(p *Datapath) map[netip.AddrPort]Flow {
	l.t.Helper()
	var key kernelTuple
	var value kernelFlow
	all := make(map[netip.AddrPort]Flow)
	entries := p.kernel.Flows.Iterate()
	for entries.Next(&key, &value) {
		if key.Direction == outward {
			f := key.flow(&value)
			all[f.Client] = f
		}
	}
	if err := entries.Err(); err != nil {
		l.t.Fatal(err)
	}
	return all
}
