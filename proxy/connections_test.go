package proxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// An endsFrontend is what stands behind one port in the tests of how flows end, by
// the names of pods.
type endsFrontend struct {
	port     uint16
	backends []string
	draining []string
	miss     Miss
}

// endsState is a VIP in each family with these ports, for TCP and UDP.
func endsState(fronts ...endsFrontend) State {
	s := proxytest.PacketState(LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64")})
	s.VIPs = VIPs{}
	for family := range state.SetID(2) {
		v := &VIP{Addr: proxytest.At("vip", family)}
		for _, p := range []Protocol{TCP, UDP} {
			for _, f := range fronts {
				to := Target{Backends: proxytest.Backends(family, f.backends...), Remote: Masquerade, Miss: f.miss}
				in := to
				in.Remote = Preserve
				fe := Frontend{Protocol: p, Port: f.port, External: to, Internal: in}
				for _, b := range proxytest.Backends(family, f.draining...) {
					fe.Draining = append(fe.Draining, b.Addr)
				}
				v.Frontends = append(v.Frontends, fe)
			}
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, v)
	}
	return s
}

// A session is an open flow.
type session struct {
	net.Conn
	from, network string
	to            netip.AddrPort
	first         string // its first answer
}

func (s session) String() string { return s.network + " from " + s.from + " to " + s.to.String() }

// sessions opens flows to a port of both VIPs, from everywhere.
func (l *lab) sessions(network string, port uint16, from ...string) []session {
	l.T.Helper()
	var all []session
	for family := range state.SetID(2) {
		for _, name := range from {
			s := session{from: name, network: network, to: netip.AddrPortFrom(proxytest.At("vip", family), port)}
			s.Conn = l.Connect(l.Ns(name), network, 0, s.to)
			if s.first = l.Ask(s.Conn); !strings.Contains(s.first, " saw ") {
				l.T.Fatalf("%s: %s", s, s.first)
			}
			all = append(all, s)
		}
	}
	return all
}

// check asks in all sessions; an empty want is their first answer.
func (l *lab) check(when, want string, all ...session) {
	l.T.Helper()
	for _, s := range all {
		w := want
		if w == "" {
			w = s.first
		}
		if got := l.AskFor(s.Conn, w); got != w {
			l.T.Errorf("%s: %s: %s; want %s", when, s, got, w)
		}
	}
}

// A connection stays with a backend that drains, and when that is gone as well its
// client's next packet meets a reset: whatever backends are left, wherever the client and
// the backend are.
func TestConnectionsEndWithTheirBackend(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		// By port, who remains.
		after := []endsFrontend{
			{port: 80, backends: []string{"pod2", "pod3"}},
			{port: 81, backends: []string{"pod2"}},
			{port: 82, miss: Drop},
			{port: 83, miss: Reject},
			{port: 84, backends: []string{"remote"}},
		}
		before, draining := slices.Clone(after), slices.Clone(after)
		for i := range after {
			before[i].backends = []string{"pod1"}
			draining[i].draining = []string{"pod1"}
		}
		before = append(before, endsFrontend{port: 85, backends: []string{"remote"}})
		draining = append(draining, endsFrontend{
			port: 85, backends: []string{"pod1", "pod2"}, draining: []string{"remote"},
		})
		after = append(after, endsFrontend{port: 85, backends: []string{"pod1", "pod2"}})

		mustSet(t, p, endsState(before...))
		var open []session
		for _, f := range before {
			open = append(open, l.sessions("tcp", f.port, "client", "pod2", "node")...)
		}
		bystander := l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(proxytest.At("pod1", 0), 8080))
		mustSet(t, p, endsState(draining...))
		checkKernel(t, endsState(draining...))
		swept(t, p)
		l.check("while it drains", "", open...)
		mustSet(t, p, endsState(after...))
		swept(t, p)
		l.check("when it is gone", "reset", open...)
		if got := l.Ask(bystander); got != "pod1 saw client" {
			t.Errorf("a connection past the VIP: %s", got)
		}
		if s := p.Status(); s.LastError != "" || s.ConntrackError != "" {
			t.Error(s)
		}
	})
}

// A client that only listens is reset too when its backend has gone, wherever it is and
// whatever backends are left. A client that may no longer use the frontend gets no packet, and a
// client whose backend is still there is not disturbed.
func TestSilentClientsAreReset(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		after := []endsFrontend{
			{port: 80, backends: []string{"pod2", "pod3"}},
			{port: 81, backends: []string{"pod2"}},
			{port: 82, miss: Drop},
			{port: 83, miss: Reject},
			{port: 84, backends: []string{"remote"}},
			{port: 85, backends: []string{"pod3"}}, // as before
			{port: 86, backends: []string{"pod2"}},
		}
		before := slices.Clone(after)
		for i := range before {
			if before[i].port != 85 {
				before[i].backends = []string{"pod1"}
			}
		}
		mustSet(t, p, endsState(before...))
		var open []session
		for _, f := range before[:len(before)-2] {
			open = append(open, l.sessions("tcp", f.port, "client", "pod2", "node")...)
		}
		stay, restricted := l.sessions("tcp", 85, "client", "node"), l.sessions("tcp", 86, "client")
		for _, o := range slices.Concat(open, stay, restricted) {
			if err := o.Conn.(*net.TCPConn).SetKeepAlive(false); err != nil { // which is no listening only
				t.Fatal(err)
			}
		}
		s := endsState(after...)
		for v := range s.VIPs.All() {
			for i := range v.Frontends {
				if f := &v.Frontends[i]; f.Port == 86 {
					f.Sources = proxytest.Prefixes("198.51.100.0/24",
						"2001:db8:f::/48")[state.Family(v.Addr) : state.Family(v.Addr)+1]
				}
			}
		}
		mustSet(t, p, s)
		swept(t, p)
		for _, o := range open {
			if err := o.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := o.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: %v; want a reset", o, err)
			}
		}
		// By now all resets have arrived.
		for _, o := range slices.Concat(stay, restricted) {
			_ = o.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // It is open.
			if _, err := o.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %v; want silence", o, err)
			}
			_ = o.SetReadDeadline(time.Time{})
		}
		l.check("with its backend", "", stay...)
	})
}

// A backend that comes back before its flows have ended keeps them.
func TestConnectionsSurviveShortRemoval(t *testing.T) {
	withFastPath(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		one := endsState(endsFrontend{port: 80, backends: []string{"pod1"}})
		mustSet(t, p, one)
		open := l.sessions("tcp", 80, "client")
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod2"}}))
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod2"}, draining: []string{"pod1"}}))
		swept(t, p)
		l.check("drains after it was gone", "", open...)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod2"}}))
		mustSet(t, p, one)
		swept(t, p)
		l.check("serves after it was gone", "", open...)
	})
}

// A datagram's flow leaves a backend that drains a moment later, unless there is no other: then
// it leaves when there is one.
func TestUDPFlowLeavesDrainingBackend(t *testing.T) {
	withFastPath(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, endsState(
			endsFrontend{port: 80, backends: []string{"pod1"}},
			endsFrontend{port: 81, backends: []string{"pod1"}}))
		busy := l.sessions("udp", 80, "client", "node")
		alone := l.sessions("udp", 81, "client", "node")
		mustSet(t, p, endsState(
			endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}},
			endsFrontend{port: 81, draining: []string{"pod1"}}))
		swept(t, p)
		for _, s := range busy {
			l.check("with another backend", "pod3 saw "+s.from, s)
		}
		l.check("without another", "", alone...)
		mustSet(t, p, endsState(
			endsFrontend{port: 80, backends: []string{"pod3"}},
			endsFrontend{port: 81, backends: []string{"pod3"}, draining: []string{"pod1"}}))
		swept(t, p)
		for _, s := range alone {
			l.check("when there is another", "pod3 saw "+s.from, s)
		}
	})
}

// A flow that rests leaves a backend that drains when it has rested for a second, and one whose
// packets come all the time two seconds later: an entry that goes while an answer is under way
// would lose that answer.
func TestBusyUDPFlowLeavesLater(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod1"}}))
		all := l.sessions("udp", 80, "client")
		left := make(map[string]time.Duration)
		began := time.Now()
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}}))
		for len(left) < len(all) {
			if time.Since(began) > 30*time.Second {
				t.Fatalf("of %d flows %d have left", len(all), len(left))
			}
			for _, s := range all {
				if got := l.Ask(s.Conn); left[s.String()] == 0 && strings.HasPrefix(got, "pod3") {
					left[s.String()] = time.Since(began)
				}
			}
		}
		for s, after := range left {
			if after < 3*time.Second {
				t.Errorf("%s left after %s, though it did not rest", s, after)
			}
		}
		swept(t, p)
	})
}

// A connection that the network cut leaves an entry that lives for days. When its
// pod is gone, the client's port serves again.
func TestCutConnectionFreesItsPort(t *testing.T) {
	withFastPath(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod1"}}))
		for family := range state.SetID(2) {
			c := l.atPod1(family)
			// Neither the client's end nor the pod's reaches the other.
			l.Router.Do(func() {
				proxytest.NFT(t, "table inet cut { chain f { type filter hook forward priority 0; policy drop; }; }")
			})
			_ = c.(*net.TCPConn).SetLinger(0) // or its socket would hold the port
			c.Close()
			l.Router.Do(func() { proxytest.NFT(t, "delete table inet cut") })
		}
		l.Pod1.Do(func() {
			proxytest.NFT(t, "table inet dead { chain in { type filter hook input priority 0; policy drop; meta "+
				"l4proto icmpv6 accept; }; }")
		})
		for _, step := range []struct {
			state endsFrontend
			want  string
		}{
			// the port is still the old connection's
			{endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}}, "silence"},
			{endsFrontend{port: 80, backends: []string{"pod3"}}, "pod3 saw client"},
		} {
			mustSet(t, p, endsState(step.state))
			swept(t, p)
			for family := range state.SetID(2) {
				if got := l.ProbeFrom(l.Client, "tcp", 4444, netip.AddrPortFrom(proxytest.At("vip", family), 80),
					step.want); got != step.want {
					t.Errorf("family %d, draining %v: %s; want %s", family, step.state.draining, got, step.want)
				}
			}
		}
	})
}

// atPod1 is a connection of the client's port 4444, which leads to pod1.
func (l *lab) atPod1(family state.SetID) net.Conn {
	l.T.Helper()
	c := l.Connect(l.Client, "tcp", 4444, netip.AddrPortFrom(proxytest.At("vip", family), 80))
	if got := l.Ask(c); got != "pod1 saw client" {
		l.T.Fatal(got)
	}
	return c
}

// A connection that its backend has reset stays in conntrack for ten seconds, and takes a SYN by its
// port for its own. When the backend goes, the port is free.
func TestResetConnectionFreesItsPort(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod1"}}))
		for family := range state.SetID(2) {
			c := l.atPod1(family)
			var out []byte
			var err error
			l.Pod1.Do(func() {
				// By its path: what iptables is tried with has no PATH but its own.
				out, err = exec.Command("/bin/ss", "--kill", "dst",
					netip.AddrPortFrom(proxytest.At("client", family), 4444).String()).CombinedOutput()
			})
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got := l.Ask(c); got != "reset" {
				t.Fatalf("%s; want its connection reset", got)
			}
		}
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod3"}}))
		swept(t, p)
		for family := range state.SetID(2) {
			const want = "pod3 saw client"
			if got := l.ProbeFrom(l.Client, "tcp", 4444, netip.AddrPortFrom(proxytest.At("vip", family), 80),
				want); got != want {
				t.Errorf("family %d: %s; want %s", family, got, want)
			}
		}
	})
}

// Entries of other programs are left alone: another port of the VIP, or another address,
// that another program translates to a backend which has gone.
func TestFlowsOfOthersDoNotEnd(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		proxytest.NFT(t, `table ip theirs { chain pre { type nat hook prerouting priority dstnat; ip daddr { 192.0.2.1, 192.0.2.50 } tcp dport { 7000, 7001 } dnat to 10.244.1.11:8080; }; }`)
		p := newProxy(t)
		one := endsState(endsFrontend{port: 80, backends: []string{"pod1"}})
		one.Owned = proxytest.Prefixes("192.0.2.1/32", "2001:db8::/64")
		mustSet(t, p, one)
		ours := l.sessions("tcp", 80, "client")
		theirs := []session{
			{Conn: l.Connect(l.Client, "tcp", 0, netip.MustParseAddrPort("192.0.2.1:7000"))},
			{Conn: l.Connect(l.Client, "tcp", 0, netip.MustParseAddrPort("192.0.2.50:7001"))},
		}
		l.check("at first", "pod1 saw client", theirs...)
		gone := endsState(endsFrontend{port: 80, backends: []string{"pod2"}})
		gone.Owned = one.Owned
		mustSet(t, p, gone)
		swept(t, p)
		l.check("when the backend is gone", "pod1 saw client", theirs...)
		l.check("when the backend is gone", "reset", ours...)
	})
}

// A port that its Service gives up leaves the connections alone, and so does an
// address that is no pool's any more. An address that goes back to its pool resets
// them, and leaves nothing for its next Service to stumble over.
func TestConnectionsWhenTheVIPGoes(t *testing.T) {
	withFastPath(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		two := endsState(endsFrontend{port: 80, backends: []string{"pod1"}},
			endsFrontend{port: 81, backends: []string{"pod1"}})
		mustSet(t, p, two)
		open := l.sessions("tcp", 80, "client", "pod2")
		mustSet(t, p, endsState(endsFrontend{port: 81, backends: []string{"pod2"}}))
		swept(t, p)
		l.check("without the port", "", open...)
		mustSet(t, p, two)
		strange := State{Node: "n1", Clients: two.Clients}
		mustSet(t, p, strange)
		swept(t, p)
		l.check("without the pool", "", open...)
		mustSet(t, p, two)
		mustSet(t, p, endsState()) // as an address lingers whose Service was deleted
		swept(t, p)
		l.check("without frontends", "", open...)
		strange.Owned = two.Owned
		mustSet(t, p, strange)
		swept(t, p)
		l.check("back in the pool", "reset", open...)
		for family := range state.SetID(2) {
			if all := l.flows(proxytest.At("vip", family)); len(all) > 0 {
				t.Errorf("family %d: %d entries are left", family, len(all))
			}
		}
	})
}

// The node's own address in a careless pool is never refused, so that connections go
// on when it is no longer a VIP.
func TestConnectionsToTheNodesOwnAddress(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		l.Node.Addr("lo", "192.0.2.77/32", "2001:db8::77/128")
		s := endsState(endsFrontend{port: 80, backends: []string{"pod1"}})
		var mine []*VIP
		for v := range s.VIPs.All() {
			v.Addr = proxytest.At("mine", state.Family(v.Addr))
			mine = append(mine, v)
		}
		s.VIPs = proxytest.VIPsOf(mine...)
		mustSet(t, p, s)
		var open []session
		for family := range state.SetID(2) {
			to := netip.AddrPortFrom(proxytest.At("mine", family), 80)
			open = append(open, session{
				Conn: l.Connect(l.Client, "tcp", 0, to), from: "client", network: "tcp", to: to,
			})
		}
		l.check("at first", "pod1 saw client", open...)
		mustSet(t, p, State{Node: "n1", Owned: s.Owned})
		swept(t, p)
		l.check("when it is no VIP", "pod1 saw client", open...)
	})
}
