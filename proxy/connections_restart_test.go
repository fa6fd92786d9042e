package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A process that finds the table knows from it which backends drained.
func TestConnectionsEndAfterRestart(t *testing.T) {
	withFastPath(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod1"}}))
		open := l.sessions("tcp", 80, "client")
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}}))
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p = newProxy(t)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}}))
		swept(t, p)
		l.check("while it drains", "", open...)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p = newProxy(t)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod3"}}))
		swept(t, p)
		l.check("when it is gone", "reset", open...)
	})
}

// A packet of a connection that conntrack has forgotten goes on to the backend where
// there is no doubt which it is, and the connection lives on. Else it is refused: a
// backend by chance is mostly the wrong one, and so is the only one that is here if a
// router has sent the client's packets to this node in the middle.
func TestForgottenConnections(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := endsState(
			endsFrontend{port: 80, backends: []string{"pod1"}},
			endsFrontend{port: 81, backends: []string{"pod1", "pod3"}},
			endsFrontend{port: 82, backends: []string{"pod1", "pod3"}})
		for v := range s.VIPs.All() {
			v.Frontends[2].Scheduler = SourceHash
		}
		mustSet(t, p, s)
		outside, inside := l.sessions("tcp", 80, "client"), l.sessions("tcp", 80, "pod2")
		two := slices.Concat(l.sessions("tcp", 81, "client", "pod2", "node"),
			l.sessions("tcp", 81, "client", "pod2", "node"))
		hash := l.sessions("tcp", 82, "client", "pod2")
		l.forget()
		l.check("one backend, from outside", "reset", outside...)
		l.check("one backend, from a pod", "", inside...)
		l.check("two backends", "reset", two...)
		l.check("two by the source", "", hash...)
	})
}

// A client uses a port again that it had a minute ago, by another node, and is moved to
// this one, which remembers the earlier connection. Conntrack takes what comes for that one's,
// far ahead of its window, which is invalid: it must vanish, as it would in an open
// connection. Without that entry it is refused.
func TestMoveToNodeWithEndedConnection(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, endsState(endsFrontend{port: 80, backends: []string{"pod1", "pod3"}}))
		vip, raw := proxytest.At("vip", 0), l.RawTCP(l.Client)
		const port = 4444
		c := l.Connect(l.Client, "tcp", port, netip.AddrPortFrom(vip, 80))
		if got := l.Ask(c); !strings.Contains(got, " saw client") {
			t.Fatal(got)
		}
		c.Close()
		seq, ack := raw.End(t, port)
		// Linux begins a connection of the same addresses and ports 250 kB a millisecond
		// after the one before.
		const psh, later = 0x18, 50_000_000
		raw.SendAt(t, vip, port, 80, psh, seq+later, ack+later)
		if raw.Reset("silence") {
			t.Error("what is invalid was answered by RST")
		}
		l.forget()
		raw.SendAt(t, vip, port, 80, psh, seq+later, ack+later)
		if !raw.Reset("reset") {
			t.Error("what is unknown was not answered by RST")
		}
	})
}

// forget deletes the entries of all flows to the VIPs.
func (l *lab) forget() {
	l.T.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		l.T.Fatal(err)
	}
	defer s.Close()
	vips := []netip.Addr{proxytest.At("vip", 0), proxytest.At("vip", 1)}
	ours := func(f *conntrack.Flow) bool { return slices.Contains(vips, f.VIP) }
	if _, err := conntrack.DeleteFlowsIf(s, conntrack.RequestOf(slices.Values(vips)), ours); err != nil {
		l.T.Fatal(err)
	}
}

// What a process that was killed between a change and its sweep has left is swept by
// the next one: flows to a backend that is gone end, others go on.
func TestFlowsOfKilledProcessEnd(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := endsState(endsFrontend{port: 80, backends: []string{"pod1"}, draining: []string{"pod2"}},
			endsFrontend{port: 81, backends: []string{"pod1"}})
		mustSet(t, p, s)
		var stay, end []session
		for _, network := range []string{"tcp", "udp"} {
			end = append(end, l.sessions(network, 80, "client", "pod3", "node")...)
			stay = append(stay, l.sessions(network, 81, "client", "pod3", "node")...)
		}
		// Without what comes after it in Set, this is the moment in which it was killed.
		after := endsState(endsFrontend{port: 80, backends: []string{"pod3"}},
			endsFrontend{port: 81, backends: []string{"pod1"}})
		vips := state.DiffVIPs(s.VIPs, after.VIPs)
		if err := p.rules.renderer.Update(t.Context(),
			renderer.Step{Have: s, Want: after, VIPs: vips,
				Elements: state.DiffStates(s, after, vips, state.RepliesOf(s.VIPs))}); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		checkKernel(t, after)

		q := newProxy(t)
		mustSet(t, q, after)
		swept(t, q)
		for _, s := range end {
			want := "reset"
			if s.network == "udp" {
				want = "pod3"
			}
			if got, _, _ := strings.Cut(l.Ask(s), " saw "); got != want {
				t.Errorf("%s: %s; want %s", s, got, want)
			}
		}
		for _, s := range stay {
			if got := l.Ask(s); got != s.first {
				t.Errorf("%s: %s, then %s", s, s.first, got)
			}
		}
	})
}
