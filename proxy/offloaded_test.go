package proxy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// fastLab is a lab whose node has a fast path.
func fastLab(t *testing.T, f func(t *testing.T, l *lab)) {
	t.Helper()
	proxytest.InNamespace(t, func(t *testing.T) {
		testFast = filepath.Join(nstest.BPF(t), "fanfare")
		f(t, newLab(t))
	})
}

// tracked reports whether conntrack of the node knows a flow from there to a VIP's port.
func (l *lab) tracked(from, network string, to netip.AddrPort) bool {
	return slices.ContainsFunc(l.flows(to.Addr()), func(f conntrack.Flow) bool {
		return f.Port.Port == to.Port() && f.Port.Proto.String() == network &&
			f.Client == proxytest.At(from, state.Family(to.Addr()))
	})
}

// Flows of external clients to pods of this node are taken, and no entry of conntrack is
// made for them; all others take the rules, and all meet the same pods.
func TestFastPathTakes(t *testing.T) {
	fastLab(t, func(t *testing.T, l *lab) {
		p := newProxy(t)
		clients := LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64")}
		mustSet(t, p, proxytest.PacketState(clients))
		swept(t, p) // those of UDP are taken a moment later
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp"} {
				for port, want := range map[uint16]string{
					proxytest.PortLocal: "pod1 saw client", proxytest.PortCluster: "pod1 saw client",
					proxytest.PortRemote: "remote saw node", proxytest.PortHost: "node saw client",
				} {
					to := netip.AddrPortFrom(proxytest.At("vip", family), port)
					if got := l.Probe(l.Client, network, to, want); got != want {
						t.Errorf("%s to %s: %s; want %s", network, to, got, want)
					}
					if fast := port == proxytest.PortLocal ||
						port == proxytest.PortCluster; l.tracked("client", network, to) == fast {
						t.Errorf("%s to %s: tracked %v; want it taken %v", network, to, !fast, fast)
					}
				}
				to := netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal)
				if got := l.Probe(l.Pod2, network, to, ""); got != "pod1 saw pod2" || !l.tracked("pod2", network, to) {
					t.Errorf("a pod's %s to %s: %s, or taken", network, to, got)
				}
			}
		}
		mustSet(t, p, proxytest.PacketState(clients)) // and flows are counted
		swept(t, p)
		st := p.Status().FastPath
		if st.Flows != 2*2*2 {
			t.Errorf("%d flows; want 8", st.Flows)
		}
		if !slices.Equal(st.Interfaces, []string{"eth0"}) || st.Frontends != 2*2*2 || st.Error != "" {
			t.Errorf("%+v; want 8 frontends on eth0", st)
		}
		// Those of the host have no interface that leads to them, which only the fast path knows.
		for _, f := range st.NotOffloaded {
			if strings.Contains(f.Frontend, "tcp/86") && f.Why == "" {
				t.Errorf("%+v", f)
			}
		}
	})
}

// A flow of UDP that the rules have stays where it is when its frontend is taken, and one that the
// fast path has when it is left to the rules, whatever for.
func TestFlowsStayWhenTakenAndLeft(t *testing.T) {
	fastLab(t, func(t *testing.T, l *lab) {
		p := newProxy(t)
		taken := endsState(endsFrontend{port: 80, backends: []string{"pod1", "pod2", "pod3"}})
		each := func(do func(*Frontend)) State {
			s := taken
			s.VIPs = VIPs{}
			for v := range taken.VIPs.All() {
				w := &VIP{Addr: v.Addr, Frontends: slices.Clone(v.Frontends)}
				for i := range w.Frontends {
					do(&w.Frontends[i])
				}
				s.VIPs = proxytest.WithVIPs(s.VIPs, w)
			}
			return s
		}
		mustSet(t, p, each(func(f *Frontend) { f.Scheduler = RoundRobin }))
		var open []session
		add := func() {
			for range 3 {
				open = append(open, l.sessions("tcp", 80, "client")...)
				open = append(open, l.sessions("udp", 80, "client")...)
			}
		}
		add()
		mustSet(t, p, taken)
		swept(t, p)
		l.check("taken", "", open...)
		add()
		for name, other := range map[string]func(*Frontend){
			"a scheduler": func(f *Frontend) { f.Scheduler = Maglev },
			"affinity":    func(f *Frontend) { f.Affinity = state.MaxAffinity },
			"Cluster": func(f *Frontend) {
				f.External.Backends = slices.Concat(f.External.Backends,
					proxytest.Backends(state.Family(f.External.Backends[0].Addr.Addr()), "remote"))
			},
			"sources": func(f *Frontend) { f.Sources = proxytest.Prefixes("10.0.0.0/8", "fd00::/16") },
		} {
			mustSet(t, p, each(other))
			swept(t, p)
			if n := p.Status().FastPath.Frontends; n != 0 {
				t.Errorf("%s: %d frontends are taken", name, n)
			}
			l.check("left to the rules, "+name, "", open...)
			mustSet(t, p, taken)
			swept(t, p)
			l.check("taken after "+name, "", open...)
		}
		// A list without the client ends them, wherever they are.
		mustSet(t, p, each(func(f *Frontend) { f.Sources = proxytest.Prefixes("198.51.100.0/24", "2001:db8:f::/48") }))
		swept(t, p)
		l.check("shut out", "silence", open[:2]...)
		l.check("shut out", "silence", open[len(open)-2:]...)
	})
}

// What another program has unpinned is pinned again and reported; without it the next process would
// not find what this one has.
func TestFastPathIsRepaired(t *testing.T) {
	fastLab(t, func(t *testing.T, l *lab) {
		p := newProxy(t)
		s := endsState(endsFrontend{port: 80, backends: []string{"pod1"}})
		mustSet(t, p, s)
		open := l.sessions("tcp", 80, "client")
		if err := os.RemoveAll(testFast); err != nil {
			t.Fatal(err)
		}
		p.Recheck()
		mustSet(t, p, s)
		if st := p.Status().FastPath; st.Repairs != 1 || st.Found == "" {
			t.Errorf("%d repairs, found %q", st.Repairs, st.Found)
		}
		for range 2 {
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			l.check("without a process", "", open...)
			p = newProxy(t)
			mustSet(t, p, s)
			swept(t, p)
			l.check("with the next one", "", open...)
		}
		if st := p.Status().FastPath; st.Repairs != 0 || st.Flows == 0 {
			t.Errorf("the next one has %d flows, after %d repairs of %q", st.Flows, st.Repairs, st.Found)
		}
	})
}

// A connection of the fast path's that has ended is not in the way of one that the rules lead from
// the same port of its client to the same backend, by another address.
func TestEndedFlowBlocksNoPort(t *testing.T) {
	fastLab(t, func(t *testing.T, l *lab) {
		p := newProxy(t)
		stateWith := func(affinity time.Duration) State {
			s := endsState(endsFrontend{port: 80, backends: []string{"pod1"}})
			for v := range s.VIPs.All() {
				v.Frontends[0].Affinity = affinity
				s.VIPs = proxytest.WithVIPs(s.VIPs,
					&VIP{Addr: proxytest.At("vip2", state.Family(v.Addr)), Frontends: slices.Clone(v.Frontends)})
			}
			return s
		}
		for _, s := range []struct {
			vip   string
			state State
		}{{"vip", stateWith(0)}, {"vip2", stateWith(state.MaxAffinity)}} {
			mustSet(t, p, s.state)
			swept(t, p)
			for family := range state.SetID(2) {
				to := netip.AddrPortFrom(proxytest.At(s.vip, family), 80)
				if got := l.ProbeFrom(l.Client, "tcp", 4444, to, ""); got != "pod1 saw client" {
					t.Errorf("%s: %s", to, got)
				}
			}
		}
	})
}
