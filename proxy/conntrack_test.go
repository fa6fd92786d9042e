package proxy

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// swept waits until the entries that changes made wrong are deleted, which
// takes a moment longer than Set.
func swept(t *testing.T, p *Proxy) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !p.cleaner.IsIdle() ||
		p.offloader.busy(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not swept: %s", p.Status().ConntrackError)
		}
	}
}

// A SYN that comes before the VIP exists leaves an entry that keeps the client's
// port away from the rules. Once there are rules, that port connects.
func TestPoisonedPort(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		s.Owned = nil // which would keep the SYN out
		mustSet(t, p, State{Node: "n1"})
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp", "sctp"} {
				to := netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal)
				if got := l.ProbeFrom(l.Client, network, 4444, to, "silence"); strings.Contains(got, "saw") {
					t.Fatalf("%s before the VIP: %s", network, got)
				}
			}
			if n := len(l.flows(proxytest.At("vip", family))); n != 3 {
				t.Fatalf("%d entries before the VIP; the test needs 3", n)
			}
		}
		mustSet(t, p, s)
		swept(t, p)
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp", "sctp"} {
				to := netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal)
				if got := l.ProbeFrom(l.Client, network, 4444, to, "pod1 saw client"); got != "pod1 saw client" {
					t.Errorf("%s from the same port: %s; want pod1 saw client", network, got)
				}
			}
		}
	})
}

// What came for an address of a pool before the rules is gone when Set returns: the
// address may be announced at once. A flow to the node's own address stays, even
// if a careless pool contains it.
func TestOwnedIsSweptBeforeSetReturns(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, State{Node: "n1"})
		s := proxytest.PacketState(LocalClients{})
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp"} {
				l.ProbeFrom(l.Client, network, 4444,
					netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal), "silence")
			}
			node := proxytest.At("node", family)
			l.ProbeFrom(l.Client, "udp", 4445, netip.AddrPortFrom(node, 9), "refused")
			s.Owned = append(s.Owned, netip.PrefixFrom(node, node.BitLen()))
		}
		slices.SortFunc(s.Owned, netip.Prefix.Compare)
		kept := len(l.flows(proxytest.At("node", 0))) + len(l.flows(proxytest.At("node", 1)))
		if len(l.flows(proxytest.At("vip", 0))) != 2 || len(l.flows(proxytest.At("vip", 1))) != 2 || kept == 0 {
			t.Fatal("not the entries that the test needs")
		}
		if err := p.cleaner.Close(); err != nil { // so that it is Set who sweeps
			t.Fatal(err)
		}
		mustSet(t, p, s)
		for family := range state.SetID(2) {
			if n := len(l.flows(proxytest.At("vip", family))); n > 0 {
				t.Errorf("family %d: %d entries for the VIP are left", family, n)
			}
		}
		if n := len(l.flows(proxytest.At("node", 0))) + len(l.flows(proxytest.At("node", 1))); n != kept {
			t.Errorf("%d of %d entries for the node itself are left", n, kept)
		}
	})
}

// The same for a port that is new at a VIP which was there: while it is not
// served it is refused, so only what came before the VIP could do harm.
func TestOwnedKeepsPoisonOut(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, State{Node: "n1", Owned: s.Owned})
		for family := range state.SetID(2) {
			vip := proxytest.At("vip", family)
			for _, network := range []string{"tcp", "udp"} {
				l.ProbeFrom(l.Client, network, 4444, netip.AddrPortFrom(vip, proxytest.PortLocal), "refused")
			}
			if all := l.flows(vip); len(all) > 0 {
				t.Errorf("%d entries for %s", len(all), vip)
			}
		}
	})
}

// A UDP flow leaves an endpoint that is removed, and entries of others stay.
func TestUDPFlowLeavesRemovedEndpoint(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, proxytest.UDPState("pod1"))
		bystander := l.Connect(l.Client, "udp", 0, netip.AddrPortFrom(proxytest.At("pod1", 0), 8080))
		if got := l.Ask(bystander); got != "pod1 saw client" {
			t.Fatal(got)
		}
		var conns [2]net.Conn
		for family := range state.SetID(2) {
			conns[family] = l.Connect(l.Client, "udp", 0, netip.AddrPortFrom(proxytest.At("vip", family), 53))
			if got := l.Ask(conns[family]); got != "pod1 saw client" {
				t.Fatal(got)
			}
		}
		mustSet(t, p, proxytest.UDPState("remote"))
		swept(t, p)
		for family := range state.SetID(2) {
			if got := l.Ask(conns[family]); got != "remote saw node" {
				t.Errorf("family %d: the flow is still with %s", family, got)
			}
		}
		if len(l.flows(proxytest.At("pod1", 0))) != 1 {
			t.Error("the entry of a flow that is not ours is gone")
		}
		if s := p.Status(); s.LastError != "" {
			t.Error(s.LastError)
		}
	})
}

// A SYN that a backend has not answered when it is removed, as when its node has
// died, does not keep the client's port there: the next one finds another backend.
// A connection that was answered stays with a backend that drains.
func TestSYNLeavesRemovedEndpoint(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		// Dead as a host without power is; only its neighbours are not told.
		l.Pod2.Do(func() {
			proxytest.NFT(t, "table inet dead { chain in { type filter hook input priority 0; policy drop; meta "+
				"l4proto icmpv6 accept; }; }")
		})
		mustSet(t, p, tcpState("pod2", "pod1"))
		var conns [2]net.Conn
		for family := range state.SetID(2) {
			vip := proxytest.At("vip", family)
			if got := l.ProbeFrom(l.Client, "tcp", 4444, netip.AddrPortFrom(vip, 80), "silence"); got != "silence" {
				t.Fatal(got)
			}
			conns[family] = l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(vip, 81))
			if got := l.Ask(conns[family]); got != "pod1 saw client" {
				t.Fatal(got)
			}
		}
		s := tcpState("pod1", "remote")
		for v := range s.VIPs.All() {
			v.Frontends[1].Draining = []netip.AddrPort{proxytest.Backends(state.Family(v.Addr), "pod1")[0].Addr}
		}
		mustSet(t, p, s)
		swept(t, p)
		for family := range state.SetID(2) {
			if got := l.ProbeFrom(l.Client, "tcp", 4444, netip.AddrPortFrom(proxytest.At("vip", family), 80),
				"pod1 saw client"); got != "pod1 saw client" {
				t.Errorf("family %d, from the same port: %s; want pod1 saw client", family, got)
			}
			if got := l.Ask(conns[family]); got != "pod1 saw client" {
				t.Errorf("family %d: the connection is with %s", family, got)
			}
		}
	})
}

// tcpState is a VIP in each family whose ports 80 and 81 are at one backend each.
func tcpState(backend80, backend81 string) State {
	s := State{Node: "n1"}
	for family := range state.SetID(2) {
		v := &VIP{Addr: proxytest.At("vip", family)}
		for i, name := range []string{backend80, backend81} {
			to := Target{Backends: proxytest.Backends(family, name)}
			v.Frontends = append(v.Frontends, Frontend{Protocol: TCP, Port: uint16(80 + i), External: to, Internal: to})
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, v)
	}
	return s
}
