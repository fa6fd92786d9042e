package proxy

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A segment is a link with two nodes or three, each of which has a pod and forwards a VIP to it,
// and a client that sends to one of them:
//
//	client --- bridge --- a --- pod a
//	                '---- b --- pod b
//
// Node a is in the test's own namespace.
type segment struct {
	t      *testing.T
	client *nstest.NS
	nodes  []*nstest.NS
	proxy  []*Proxy
	macs   [][6]byte
	taking bool // the VIPs are about to be answered for
}

var segmentAddr = map[string][2]string{
	"client": {"10.9.0.50", "fd00:9::50"},
	"vip":    {"10.9.0.100", "fd00:9::100"},
	"a":      {"10.9.0.1", "fd00:9::1"}, "b": {"10.9.0.2", "fd00:9::2"}, "c": {"10.9.0.3", "fd00:9::3"},
	"absent": {"10.9.0.77", "fd00:9::4d"}, "pod a": {"10.244.8.1", "fd00:244:8::1"},
	"pod b": {"10.244.8.2", "fd00:244:8::2"}, "pod c": {"10.244.8.3", "fd00:244:8::3"},
}

func on(name string, f state.SetID) netip.Addr { return netip.MustParseAddr(segmentAddr[name][f]) }

// segmentNodes are the nodes' names.
var segmentNodes = []string{"a", "b", "c"}

func newSegment(t *testing.T, size int) *segment {
	t.Helper()
	s := &segment{t: t, client: nstest.New(t, "client"), proxy: make([]*Proxy, size), macs: make([][6]byte, size)}
	bridge := nstest.New(t, "bridge")
	nstest.Link(t, bridge, "client", s.client, "eth0")
	for i, name := range segmentNodes[:size] {
		node := nstest.Node(t)
		if i > 0 {
			node = nstest.New(t, name)
		}
		s.nodes = append(s.nodes, node)
		nstest.Link(t, bridge, name, s.nodes[i], "eth0")
	}
	bridge.Bridge("br0", append([]string{"client"}, segmentNodes[:size]...)...)
	join := func(ns *nstest.NS, name string) {
		ns.Addr("eth0", segmentAddr[name][0]+"/24", segmentAddr[name][1]+"/64")
	}
	join(s.client, "client")
	for i, name := range segmentNodes[:size] {
		node, pod := s.nodes[i], nstest.New(t, "pod "+name)
		join(node, name)
		node.Forward()
		nstest.Link(t, node, "cali1", pod, "eth0")
		for f, bits := range []string{"/32", "/128"} {
			node.Addr("cali1", []string{"10.244.8.254/32", "fd00:244:8::ffff/128"}[f])
			pod.Addr("eth0", segmentAddr["pod "+name][f]+bits)
			node.Route(segmentAddr["pod "+name][f]+bits, "", "cali1")
			pod.Route([]string{"0.0.0.0/0", "::/0"}[f], []string{"10.244.8.254", "fd00:244:8::ffff"}[f], "eth0")
			s.serve(pod, netip.AddrPortFrom(on("pod "+name, state.SetID(f)), 8080))
		}
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		var err error
		node.Do(func() {
			if s.proxy[i], err = New(t.Context(),
				Options{Logger: log.With("node", name), Mode: testMode, FastPath: openFastOf("-"+name, log)}); err ==
				nil {
				var link rtnetlink.Link
				if link, err = rtnetlink.LinkByName("eth0"); err == nil {
					copy(s.macs[i][:], link.Attrs().HardwareAddr)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.proxy[i].Close() })
	}
	return s
}

// serve answers what is said over TCP with the pod's name, and bye to who has said all.
func (s *segment) serve(pod *nstest.NS, at netip.AddrPort) {
	s.t.Helper()
	var l net.Listener
	var err error
	pod.Do(func() { l, err = net.Listen("tcp", at.String()) })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	go nstest.Accept(l, func(c net.Conn) {
		buf := make([]byte, 64)
		for {
			switch _, err := c.Read(buf); {
			case errors.Is(err, io.EOF):
				fmt.Fprint(c, "bye")
				return
			case err != nil:
				return
			}
			fmt.Fprint(c, pod.Name)
		}
	})
}

// set makes a node forward the VIPs, and redirect what it does not know if hops are named: where
// packets of hosts go, packets that another node has redirected, and packets from the second hop, if
// there is a third; empty: nowhere. Each pod is the
// backend on its own node alone, so that where it is of chance the packet of an unknown
// connection is refused.
func (s *segment) set(node int, hops ...string) {
	s.t.Helper()
	name := segmentNodes[node]
	want := State{Node: name}
	if testFast != "" {
		want.Outward = []string{"eth0"}
	}
	for f := range state.SetID(2) {
		target := Target{Backends: []Backend{{Addr: netip.AddrPortFrom(on("pod "+name, f), 8080), Node: name}}}
		want.VIPs = proxytest.WithVIPs(want.VIPs,
			&VIP{
				Addr: on("vip", f), Frontends: []Frontend{{Protocol: TCP, Port: 80, External: target,
					Internal: target}},
			})
		if len(hops) == 0 {
			continue
		}
		r := Redirect{VIP: on("vip", f), Interface: "eth0"}
		for i, to := range []*netip.Addr{&r.Via, &r.Onward, &r.Beyond}[:len(hops)] {
			if hops[i] != "" {
				*to = on(hops[i], f)
			}
		}
		if onward := slices.Index(segmentNodes, hops[1]); len(hops) == 3 && onward >= 0 {
			r.OnwardMAC = s.macs[onward]
		}
		want.Redirects = append(want.Redirects, r)
		if s.taking {
			want.Taking = append(want.Taking, on("vip", f))
		}
	}
	var err error
	s.nodes[node].Do(func() { err = s.proxy[node].Set(s.t.Context(), want) })
	prepared(s.proxy[node]) // the node answers after that
	if err != nil {
		s.t.Fatal(err)
	}
	st := s.proxy[node].Status()
	if st.RedirectError != "" {
		s.t.Fatal(st.RedirectError)
	}
	if f := st.FastPath; f != nil && (f.Error != "" || f.Frontends != 2) {
		s.t.Fatalf("fast path: %+v", f)
	}
}

// turn has the client send to a node.
func (s *segment) turn(node int) {
	s.t.Helper()
	var err error
	s.client.Do(func() {
		var link rtnetlink.Link
		if link, err = rtnetlink.LinkByName("eth0"); err != nil {
			return
		}
		for f := range state.SetID(2) {
			entry := &rtnetlink.Neigh{
				LinkIndex: link.Attrs().Index, State: unix.NUD_PERMANENT, IP: on("vip", f).AsSlice(),
				HardwareAddr: s.macs[node][:],
			}
			err = errors.Join(err, rtnetlink.NeighSet(entry))
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// dial connects the client from a port, or any if that is zero.
func (s *segment) dial(f state.SetID, port int) (c net.Conn) {
	s.t.Helper()
	var err error
	s.client.Do(func() {
		d := proxytest.Dialer("tcp", port)
		d.Timeout = proxytest.Patience("")
		c, err = d.Dial("tcp", netip.AddrPortFrom(on("vip", f), 80).String())
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// ask returns which pod answers over a connection, or what becomes of it.
func (s *segment) ask(c net.Conn, want string) {
	s.t.Helper()
	_ = c.SetDeadline(time.Now().Add(proxytest.Patience("")))
	buf := make([]byte, 64)
	_, err := c.Write([]byte("who?"))
	n := 0
	if err == nil {
		n, err = c.Read(buf)
	}
	got := string(buf[:n])
	if err != nil {
		got = proxytest.Outcome(err)
	}
	if got != want {
		s.t.Errorf("%s: %s; want %s", c.RemoteAddr(), got, want)
	}
}

// end resets a connection. So it has ended for the nodes as well, without waiting for the pod,
// and the client may use its port again.
func (s *segment) end(c net.Conn) {
	s.t.Helper()
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()); err != nil {
		s.t.Fatal(err)
	}
}

// Connections that were begun by one node live on when their packets come to another one,
// which knows none of them: all that is said, the end of what is said as the first word, and
// those whose port the other node remembers.
func TestRedirect(t *testing.T) {
	onEach(t, func(t *testing.T) {
		s := newSegment(t, 2)
		s.set(0)
		s.set(1)
		s.taking = true
		const again = 4444
		s.turn(1)
		for f := range state.SetID(2) {
			c := s.dial(f, again)
			s.ask(c, "pod b")
			s.end(c)
		}
		s.turn(0)
		var open, silent, remembered, lost []net.Conn
		for f := range state.SetID(2) {
			open, silent, lost = append(open, s.dial(f, 0)), append(silent, s.dial(f, 0)), append(lost, s.dial(f, 0))
			s.ask(open[f], "pod a")
			s.ask(silent[f], "pod a")
			s.ask(lost[f], "pod a")
			remembered = append(remembered, s.dial(f, again))
			s.ask(remembered[f], "pod a")
		}
		s.turn(1)
		for _, c := range lost {
			s.ask(c, "reset") // as it is without
		}
		s.set(1, "a", "a")
		s.nodes[1].Do(func() { swept(t, s.proxy[1]) })
		for f := range state.SetID(2) {
			for range 3 {
				s.ask(open[f], "pod a")
				s.ask(remembered[f], "pod a")
			}
			if err := silent[f].(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_ = silent[f].SetReadDeadline(time.Now().Add(proxytest.Patience("")))
			if said, err := io.ReadAll(silent[f]); string(said) != "bye" || err != nil {
				t.Errorf("who said nothing more heard %q, %v; want bye", said, err)
			}
			own := s.dial(f, 0)
			s.ask(own, "pod b")
			if n := s.remembers(1, own, open[f]); n != 1 {
				t.Errorf("node b has %d entries for its own connection and one that it redirects; want 1", n)
			}
		}
		// What is the other node's as well as gone there ends.
		s.set(1)
		for _, c := range open {
			s.ask(c, "reset")
		}
		if testMode != ModeIPTables && strings.Contains(listRules(t, s.nodes[1]), renderer.RedirectTable) {
			t.Error("there is a table, and nothing to redirect")
		}
	})
}

// A node that takes an address back while it still redirects for clients that have not learnt
// that it had given it away lets no connection that it remembers stand in the way, however
// often that happens.
func TestRedirectTakenBack(t *testing.T) {
	onAll(t, func(t *testing.T) {
		s := newSegment(t, 2)
		s.set(0)
		s.set(1)
		for _, port := range []int{4444, 4445} {
			s.turn(1)
			var ended [2]net.Conn
			for f := range state.SetID(2) {
				ended[f] = s.dial(f, port)
				s.ask(ended[f], "pod b")
				s.end(ended[f])
			}
			s.set(1, "a", "a")
			if n := s.remembers(1, ended[0], ended[1]); n != 2 && testFast == "" {
				t.Errorf("node b has %d entries of what ended while it answers; want 2", n)
			}
			s.turn(0)
			var begun [2]net.Conn
			for f := range state.SetID(2) {
				begun[f] = s.dial(f, port)
				s.ask(begun[f], "pod a")
			}
			s.taking = true
			s.set(1, "a", "a")
			s.taking = false
			s.turn(1)
			for f := range state.SetID(2) {
				s.ask(begun[f], "pod a")
			}
			s.set(1, "a", "a")
		}
	})
}

// remembers is how many entries of conntrack a node has for connections of the client.
func (s *segment) remembers(node int, all ...net.Conn) (n int) {
	s.t.Helper()
	s.nodes[node].Do(func() {
		sock, err := nfnl.Dial()
		if err != nil {
			s.t.Error(err)
			return
		}
		defer sock.Close()
		found, err := conntrack.ListFlows(sock, conntrack.Request{Family: unix.AF_UNSPEC},
			func(f *conntrack.Flow) bool {
				for _, c := range all {
					if c.LocalAddr().String() == netip.AddrPortFrom(f.Client, f.From).String() {
						return true
					}
				}
				return false
			})
		if err != nil {
			s.t.Error(err)
		}
		n = len(found)
	})
	return n
}

// listRules is what nft shows of a namespace.
func listRules(t *testing.T, ns *nstest.NS) string {
	t.Helper()
	var out []byte
	var err error
	ns.Do(func() { out, err = exec.Command("nft", "list", "ruleset").Output() })
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// The connections of three owners of an address live on at the third one, as its kernel and those
// of the first two pass them on: nothing is changed at the first two, whose speakers may have
// crashed.
func TestRedirectChain(t *testing.T) {
	onAll(t, func(t *testing.T) {
		s := newSegment(t, 3)
		var all [3][2][]net.Conn
		for node, hops := range [][]string{{}, {"a", "a"}, {"b", "b"}} {
			s.set(node, hops...)
			s.turn(node)
			for f := range state.SetID(2) {
				all[node][f] = append(all[node][f], s.dial(f, 0))
			}
			for owner := range node + 1 {
				for f := range state.SetID(2) {
					s.ask(all[owner][f][0], "pod "+segmentNodes[owner])
				}
			}
		}
		// Hosts that still send to the first owner reach the last one's connections too, and the
		// last one gets back to the second.
		s.set(0, "c", "")
		s.turn(0)
		for owner := range all {
			for f := range state.SetID(2) {
				s.ask(all[owner][f][0], "pod "+segmentNodes[owner])
			}
		}
	})
}

// A node that another one has redirected a packet to does not send it back, whichever owners it
// believes to be the last ones.
func TestRedirectNotBack(t *testing.T) {
	onEach(t, func(t *testing.T) {
		s := newSegment(t, 3)
		for node := range s.nodes {
			s.set(node)
		}
		s.turn(2)
		var open []net.Conn
		for f := range state.SetID(2) {
			open = append(open, s.dial(f, 0))
		}
		s.turn(0)
		s.set(0, "b", "b", "")
		s.set(1, "a", "a", "c")
		for _, c := range open {
			s.ask(c, "pod c")
		}
		s.set(1, "a", "a", "")
		for _, c := range open {
			s.ask(c, "reset")
		}
	})
}

// What neither of two nodes knows is answered once, though each would redirect it to the
// other without end: it is redirected three times at most.
func TestRedirectNoLoop(t *testing.T) {
	onEach(t, func(t *testing.T) {
		s := newSegment(t, 2)
		s.set(0, "b", "b")
		s.set(1, "a", "a")
		const port = 5555
		for _, ns := range s.nodes {
			ns.Do(func() {
				proxytest.NFT(t, `table inet seen {
	chain c {
		type filter hook prerouting priority -400
		tcp sport 5555 counter
	}
}`)
			})
		}
		raw := &proxytest.RawTCP{From: on("client", 0)}
		var err error
		s.client.Do(func() { raw.Conn, err = net.ListenPacket("ip4:tcp", "0.0.0.0") })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { raw.Conn.Close() })
		s.turn(0)
		const ack, rst = 0x10, 0x14
		raw.SendAt(t, on("vip", 0), port, 80, ack, 1000, 2000)
		if !raw.ResetOf(port) {
			t.Error("neither node has answered a packet that neither knows")
		}
		raw.SendAt(t, on("vip", 0), port, 80, rst, 1000, 2000)
		for node, want := range []int{2 * 2, 2 * 2} { // to a, by a to b, by b to a, by a to b
			got := 0
			for end := time.Now().Add(proxytest.Patience("")); got < want &&
				time.Now().Before(end); time.Sleep(time.Millisecond) {
				got = counted(t, s.nodes[node])
			}
			if got = counted(t, s.nodes[node]); got != want {
				t.Errorf("node %d has seen %d copies of two packets; want %d", node, got, want)
			}
		}
	})
}

var counterText = regexp.MustCompile(`tcp sport 5555 counter packets (\d+)`)

func counted(t *testing.T, ns *nstest.NS) int {
	t.Helper()
	var out []byte
	var err error
	ns.Do(func() { out, err = exec.Command("nft", "list", "table", "inet", "seen").Output() })
	m := counterText.FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}
