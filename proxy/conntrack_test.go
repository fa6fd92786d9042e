package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// text is a purge in words, sorted.
func purgeText(p conntrack.Purge) string {
	var lines []string
	for vip, v := range p {
		if v.Born {
			lines = append(lines, fmt.Sprintf("%s born", vip))
		}
		if v.Left {
			lines = append(lines, fmt.Sprintf("%s left", vip))
		}
		for k := range v.Ports {
			if !v.Born {
				lines = append(lines, fmt.Sprintf("%s %s/%d new", vip, k.Proto, k.Port))
			}
		}
		for k := range v.Fenced {
			lines = append(lines, fmt.Sprintf("%s %s/%d fewer sources", vip, k.Proto, k.Port))
		}
		for k, s := range v.Gone {
			side := map[state.Sides]string{state.SideExternal: "external", state.SideInternal: "internal", state.SideExternal | state.SideInternal: "all"}[s]
			lines = append(lines, fmt.Sprintf("%s %s/%d %s gone for %s", vip, k.Proto, k.Port.Port, k.Backend, side))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestPlanPurge(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	target := func(names ...string) Target { return Target{Backends: backends(0, names...), Remote: Preserve} }
	stateWith := func(frontends ...Frontend) State {
		return State{Node: "n1", VIPs: []*VIP{{Addr: vip, Frontends: frontends}}}
	}
	fe := func(p Protocol, port uint16, external, internal Target) Frontend {
		return Frontend{Protocol: p, Port: port, External: external, Internal: internal}
	}
	fenced := func(sources ...string) State {
		f := fe(TCP, 80, target("pod1"), target("pod1"))
		f.Sources = append([]netip.Prefix{}, prefixes(sources...)...)
		return stateWith(f)
	}
	none := State{Node: "n1"}
	for _, tc := range []struct {
		name       string
		have, want State
		purge      string
	}{
		{"a new VIP", none, stateWith(fe(TCP, 80, target("pod1"), target("pod1"))), "192.0.2.1 born"},
		{"nothing", stateWith(), stateWith(), ""},
		{"a new port", stateWith(), stateWith(fe(TCP, 80, target("pod1"), target())), "192.0.2.1 tcp/80 new"},
		{"a VIP goes, TCP", stateWith(fe(TCP, 80, target("pod1"), target("pod1"))), none,
			"192.0.2.1 left\n192.0.2.1 tcp/80 10.244.1.11:8080 gone for all"},
		{"a VIP goes, UDP", stateWith(fe(UDP, 53, target("pod1"), target("pod1"))), none,
			"192.0.2.1 left\n192.0.2.1 udp/53 10.244.1.11:8080 gone for all"},
		{"the first of two goes, the other takes its slot",
			stateWith(fe(UDP, 53, target("pod1", "pod2"), target("pod1", "pod2"))),
			stateWith(fe(UDP, 53, target("pod2"), target("pod2"))),
			"192.0.2.1 udp/53 10.244.1.11:8080 gone for all"},
		{"one comes before another",
			stateWith(fe(UDP, 53, target("pod2"), target("pod2"))),
			stateWith(fe(UDP, 53, target("pod1", "pod2"), target("pod1", "pod2"))), ""},
		{"local only from now on",
			stateWith(fe(SCTP, 53, target("pod1", "remote"), target("pod1", "remote"))),
			stateWith(fe(SCTP, 53, target("pod1"), target("pod1", "remote"))),
			"192.0.2.1 sctp/53 10.244.2.11:8080 gone for external"},
		{"one for external, another for internal",
			stateWith(fe(TCP, 53, target("pod1", "remote"), target("pod1"))),
			stateWith(fe(TCP, 53, target("pod1"), target())),
			"192.0.2.1 tcp/53 10.244.1.11:8080 gone for internal\n192.0.2.1 tcp/53 10.244.2.11:8080 gone for external"},
		{"fenced", stateWith(fe(TCP, 80, target("pod1"), target("pod1"))), fenced("10.0.0.0/8"), "192.0.2.1 tcp/80 fewer sources"},
		{"fenced for all", stateWith(fe(TCP, 80, target("pod1"), target("pod1"))), fenced("0.0.0.0/0"), ""},
		{"a source more", fenced("10.0.0.0/8"), fenced("10.0.0.0/8", "11.0.0.0/8"), ""},
		{"a source less", fenced("10.0.0.0/8", "11.0.0.0/8"), fenced("11.0.0.0/8"), "192.0.2.1 tcp/80 fewer sources"},
		{"a smaller source", fenced("10.0.0.0/8"), fenced("10.0.0.0/9"), "192.0.2.1 tcp/80 fewer sources"},
		{"no longer fenced", fenced("10.0.0.0/8"), stateWith(fe(TCP, 80, target("pod1"), target("pod1"))), "192.0.2.1 tcp/80 fewer sources"},
	} {
		c := state.DiffElements(state.RenderState(tc.have), state.RenderState(tc.want))
		if diff := cmp.Diff(tc.purge, purgeText(conntrack.PlanPurge(c))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, diff)
		}
	}
}

// Only flows that a purge names are wrong.
func TestPurgeIsWrongAbout(t *testing.T) {
	vip, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	gone := netip.MustParseAddrPort("10.244.1.11:8080")
	stays := netip.MustParseAddrPort("10.244.1.12:8080")
	outside, pod := netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.244.1.99")
	served := netip.MustParseAddr("192.0.2.3")
	want := State{
		Clients: LocalClients{CIDRs: prefixes("10.244.1.0/24")},
		VIPs:    []*VIP{{Addr: served, Frontends: []Frontend{{Protocol: TCP, Port: 80}}}},
	}
	dns, web := state.Port{Proto: UDP, Port: 53}, state.Port{Proto: TCP, Port: 80}
	born := conntrack.Purge{vip: {Born: true}}
	added := conntrack.Purge{vip: {Ports: map[state.Port]bool{web: true}}}
	away := conntrack.Purge{vip: {Gone: map[conntrack.GoneBackend]state.Sides{{Port: dns, Backend: gone}: state.SideExternal}}}
	all := conntrack.Purge{vip: {Gone: map[conntrack.GoneBackend]state.Sides{{Port: dns, Backend: gone}: state.SideExternal | state.SideInternal}}}
	tcp := conntrack.Purge{
		vip:    {Gone: map[conntrack.GoneBackend]state.Sides{{Port: web, Backend: gone}: state.SideExternal}},
		served: {Gone: map[conntrack.GoneBackend]state.Sides{{Port: web, Backend: gone}: state.SideExternal}},
	}
	for _, tc := range []struct {
		name string
		p    conntrack.Purge
		f    conntrack.Flow
		want bool
	}{
		{"born before its VIP", born, conntrack.Flow{Client: outside, VIP: vip, Port: web}, true},
		{"a ping born before its VIP", born, conntrack.Flow{Client: outside, VIP: vip, Port: state.Port{Proto: 1, Port: 0}}, true},
		{"to another address", born, conntrack.Flow{Client: outside, VIP: other, Port: web}, false},
		{"translated by us or others", born, conntrack.Flow{Client: outside, VIP: vip, Port: web, DNAT: true, Backend: gone}, false},
		{"born before its port", added, conntrack.Flow{Client: outside, VIP: vip, Port: web}, true},
		{"to another port", added, conntrack.Flow{Client: outside, VIP: vip, Port: dns}, false},
		{"at a removed backend", all, conntrack.Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: gone}, true},
		{"at another backend", all, conntrack.Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: stays}, false},
		{"at a removed backend, other port", all, conntrack.Flow{Client: pod, VIP: vip, Port: web, DNAT: true, Backend: gone}, false},
		{"external, at one removed for external", away, conntrack.Flow{Client: outside, VIP: vip, Port: dns, DNAT: true, Backend: gone}, true},
		{"TCP, waiting for a removed backend", tcp, conntrack.Flow{Client: outside, VIP: vip, Port: web, DNAT: true, Backend: gone}, true},
		{"TCP, at a removed backend", tcp, conntrack.Flow{Client: outside, VIP: vip, Port: web, DNAT: true, Backend: gone, Replied: true}, false},
		{"TCP, at a removed backend of a frontend that is there", tcp, conntrack.Flow{Client: outside, VIP: served, Port: web, DNAT: true, Backend: gone, Replied: true}, true},
		{"TCP, ended there, and blocks its port", tcp, conntrack.Flow{Client: outside, VIP: served, Port: web, DNAT: true, Backend: gone, Replied: true, Ended: true}, true},
		{"TCP, ended there, and blocks no port", tcp, conntrack.Flow{Client: outside, VIP: served, Port: web, DNAT: true, Backend: gone, Replied: true, Ended: true, Yields: true}, false},
		{"UDP, at a removed backend that answers", all, conntrack.Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: gone, Replied: true}, true},
		{"internal, at one removed for external", away, conntrack.Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: gone}, false},
	} {
		if got := tc.p.Wrong(&tc.f, &want); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// swept waits until the entries that changes made wrong are deleted, which
// takes a moment longer than Set.
func swept(t *testing.T, p *Proxy) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !p.sweeper.IsIdle() || p.bypass.busy(); time.Sleep(time.Millisecond) {
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
		s := packetState(LocalClients{})
		s.Owned = nil // which would keep the SYN out
		mustSet(t, p, State{Node: "n1"})
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp", "sctp"} {
				to := netip.AddrPortFrom(at("vip", family), portLocal)
				if got := l.probeFrom(l.client, network, 4444, to, "silence"); strings.Contains(got, "saw") {
					t.Fatalf("%s before the VIP: %s", network, got)
				}
			}
			if n := len(l.flows(at("vip", family))); n != 3 {
				t.Fatalf("%d entries before the VIP; the test needs 3", n)
			}
		}
		mustSet(t, p, s)
		swept(t, p)
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp", "sctp"} {
				to := netip.AddrPortFrom(at("vip", family), portLocal)
				if got := l.probeFrom(l.client, network, 4444, to, "pod1 saw client"); got != "pod1 saw client" {
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
		s := packetState(LocalClients{})
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp"} {
				l.probeFrom(l.client, network, 4444, netip.AddrPortFrom(at("vip", family), portLocal), "silence")
			}
			node := at("node", family)
			l.probeFrom(l.client, "udp", 4445, netip.AddrPortFrom(node, 9), "refused")
			s.Owned = append(s.Owned, netip.PrefixFrom(node, node.BitLen()))
		}
		slices.SortFunc(s.Owned, netip.Prefix.Compare)
		kept := len(l.flows(at("node", 0))) + len(l.flows(at("node", 1)))
		if len(l.flows(at("vip", 0))) != 2 || len(l.flows(at("vip", 1))) != 2 || kept == 0 {
			t.Fatal("not the entries that the test needs")
		}
		if err := p.sweeper.Close(); err != nil { // so that it is Set who sweeps
			t.Fatal(err)
		}
		mustSet(t, p, s)
		for family := range state.SetID(2) {
			if n := len(l.flows(at("vip", family))); n > 0 {
				t.Errorf("family %d: %d entries for the VIP are left", family, n)
			}
		}
		if n := len(l.flows(at("node", 0))) + len(l.flows(at("node", 1))); n != kept {
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
		s := packetState(LocalClients{})
		mustSet(t, p, State{Node: "n1", Owned: s.Owned})
		for family := range state.SetID(2) {
			vip := at("vip", family)
			for _, network := range []string{"tcp", "udp"} {
				l.probeFrom(l.client, network, 4444, netip.AddrPortFrom(vip, portLocal), "refused")
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
		mustSet(t, p, udpState("pod1"))
		bystander := l.connect(l.client, "udp", 0, netip.AddrPortFrom(at("pod1", 0), 8080))
		if got := l.ask(bystander); got != "pod1 saw client" {
			t.Fatal(got)
		}
		var conns [2]net.Conn
		for family := range state.SetID(2) {
			conns[family] = l.connect(l.client, "udp", 0, netip.AddrPortFrom(at("vip", family), 53))
			if got := l.ask(conns[family]); got != "pod1 saw client" {
				t.Fatal(got)
			}
		}
		mustSet(t, p, udpState("remote"))
		swept(t, p)
		for family := range state.SetID(2) {
			if got := l.ask(conns[family]); got != "remote saw node" {
				t.Errorf("family %d: the flow is still with %s", family, got)
			}
		}
		if len(l.flows(at("pod1", 0))) != 1 {
			t.Error("the entry of a flow that is not ours is gone")
		}
		if s := p.Status(); s.LastError != "" {
			t.Error(s.LastError)
		}
	})
}

// What the kernel is asked to list holds all that a purge may be about.
func TestListFlows(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := packetState(LocalClients{})
		s.Owned = nil
		mustSet(t, p, State{Node: "n1"})
		for family := range state.SetID(2) {
			l.probeFrom(l.client, "tcp", 4444, netip.AddrPortFrom(at("other", family), 80), "silence")
		}
		mustSet(t, p, s)
		swept(t, p)
		for family := range state.SetID(2) {
			if got := l.probe(l.client, "tcp", netip.AddrPortFrom(at("vip", family), portLocal), ""); got != "pod1 saw client" {
				t.Fatal(got)
			}
			vip, other := at("vip", family), at("other", family)
			gone := &conntrack.VIPPurge{Gone: map[conntrack.GoneBackend]state.Sides{{Port: state.Port{Proto: TCP, Port: portLocal}, Backend: backends(family, "pod1")[0].Addr}: state.SideExternal}}
			for _, tc := range []struct {
				p                        conntrack.Purge
				untranslated, translated bool // must be listed
			}{
				{conntrack.Purge{other: {Born: true}}, true, false},
				{conntrack.Purge{vip: gone}, false, true},
				{conntrack.Purge{vip: gone, other: {Born: true}}, true, true},
			} {
				var untranslated, translated bool
				_, err := conntrack.ListFlows(p.sweeper.Sock, tc.p.Request(), func(f *conntrack.Flow) bool {
					untranslated = untranslated || f.VIP == other && !f.DNAT
					translated = translated || f.VIP == vip && f.DNAT
					return false
				})
				if err != nil {
					t.Fatal(err)
				}
				if tc.untranslated && !untranslated || tc.translated && !translated {
					t.Errorf("%s: untranslated listed %v, translated %v", purgeText(tc.p), untranslated, translated)
				}
			}
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
		l.pod2.Do(func() {
			nftables(t, "table inet dead { chain in { type filter hook input priority 0; policy drop; meta l4proto icmpv6 accept; }; }")
		})
		mustSet(t, p, tcpState("pod2", "pod1"))
		var conns [2]net.Conn
		for family := range state.SetID(2) {
			vip := at("vip", family)
			if got := l.probeFrom(l.client, "tcp", 4444, netip.AddrPortFrom(vip, 80), "silence"); got != "silence" {
				t.Fatal(got)
			}
			conns[family] = l.connect(l.client, "tcp", 0, netip.AddrPortFrom(vip, 81))
			if got := l.ask(conns[family]); got != "pod1 saw client" {
				t.Fatal(got)
			}
		}
		s := tcpState("pod1", "remote")
		for family, v := range s.VIPs {
			v.Frontends[1].Draining = []netip.AddrPort{backends(state.SetID(family), "pod1")[0].Addr}
		}
		mustSet(t, p, s)
		swept(t, p)
		for family := range state.SetID(2) {
			if got := l.probeFrom(l.client, "tcp", 4444, netip.AddrPortFrom(at("vip", family), 80), "pod1 saw client"); got != "pod1 saw client" {
				t.Errorf("family %d, from the same port: %s; want pod1 saw client", family, got)
			}
			if got := l.ask(conns[family]); got != "pod1 saw client" {
				t.Errorf("family %d: the connection is with %s", family, got)
			}
		}
	})
}

// tcpState is a VIP in each family whose ports 80 and 81 are at one backend each.
func tcpState(backend80, backend81 string) State {
	s := State{Node: "n1"}
	for family := range state.SetID(2) {
		v := &VIP{Addr: at("vip", family)}
		for i, name := range []string{backend80, backend81} {
			to := Target{Backends: backends(family, name)}
			v.Frontends = append(v.Frontends, Frontend{Protocol: TCP, Port: uint16(80 + i), External: to, Internal: to})
		}
		s.VIPs = append(s.VIPs, v)
	}
	return s
}

// udpState is a VIP in each family whose port 53 is at one backend.
func udpState(backend string) State {
	s := State{Node: "n1"}
	for family := range state.SetID(2) {
		to := Target{Backends: backends(family, backend)}
		s.VIPs = append(s.VIPs, &VIP{Addr: at("vip", family), Frontends: []Frontend{
			{Protocol: UDP, Port: 53, External: to, Internal: to},
		}})
	}
	return s
}

// A sweep that fails is kept and told, not forgotten.
func TestSweepThatFails(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		// A file that is no socket. To close the socket would leave its number to
		// the next file that is opened.
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		if err := unix.Dup3(int(null.Fd()), p.sweeper.Sock.FD(), unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		vip := netip.MustParseAddr("192.0.2.1")
		p.sweeper.Add(conntrack.Purge{vip: {Born: true}}, State{}, nil)
		for end := time.Now().Add(5 * time.Second); p.Status().ConntrackError == ""; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no error in the status")
			}
		}
		if p.sweeper.IsIdle() {
			t.Error("forgotten")
		}
	})
}

// A backend that went and came back before the sweep keeps the flows that it got
// since.
func TestBackendThatCameBackKeepsFlows(t *testing.T) {
	s := udpState("pod1")
	vip, b := at("vip", 0), backends(0, "pod1")[0].Addr
	p := make(conntrack.Purge)
	p.At(vip).Gone[conntrack.GoneBackend{Port: state.Port{Proto: UDP, Port: 53}, Backend: b}] = state.SideExternal | state.SideInternal
	f := &conntrack.Flow{Client: at("client", 0), VIP: vip, Port: state.Port{Proto: UDP, Port: 53}, Backend: b, DNAT: true}
	if p.Wrong(f, &s) {
		t.Error("the flow must go, though its backend is wanted")
	}
	if s = udpState("remote"); !p.Wrong(f, &s) {
		t.Error("the flow may stay, though its backend is gone")
	}
}
