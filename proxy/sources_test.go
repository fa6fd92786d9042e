package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// sourcesState is packetState with the same sources for all of its frontends.
func sourcesState(sources ...string) State {
	s := proxytest.PacketState(LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64")})
	for v := range s.VIPs.All() {
		for i := range v.Frontends {
			v.Frontends[i].Sources = proxytest.Prefixes(sources...)
		}
	}
	return s
}

// A source that may not use a frontend hears nothing and leaves nothing; others
// find what they found. Pods and processes of the host are sources like others.
func TestSources(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		for _, tc := range []struct {
			sources []string
			rows    string
			refused bool // any packet was
		}{
			{[]string{"10.0.1.0/24", "fd00:1::2/128"}, `
client 83 refused
client 80 pod1 saw client
client 81 remote saw node
pod2   80 silence
pod1   80 silence
pod2   83 silence
pod2   9  refused`, true},
			{[]string{"10.0.2.2/32", "10.244.1.0/24", "fd00:2::2/128", "fd00:244:1::/64"}, `
client 80 silence
client 81 silence
client 82 silence
client 83 silence
pod2   80 pod1 saw pod2
pod1   80 pod1 saw gateway
node   81 remote saw node`, true},
			{[]string{"0.0.0.0/0", "::/0"}, `
client 80 pod1 saw client
pod2   81 remote saw pod2
node   80 pod1 saw node`, false},
		} {
			s := sourcesState(tc.sources...)
			mustSet(t, p, s)
			checkKernel(t, s)
			swept(t, p)
			before := l.refusals()
			for row := range strings.Lines(strings.TrimSpace(tc.rows)) {
				l.row(t, row)
			}
			if n := l.refusals() - before; (n > 0) != tc.refused {
				t.Errorf("sources %v: %d packets counted", tc.sources, n)
			}
			for family := range state.SetID(2) {
				// The kernel tells a process that its own datagram was dropped.
				want := "silence"
				if sortedset.ContainsAddr(s.VIPs.At(int(family)).Frontends[0].Sources, proxytest.At("node", family)) {
					want = "pod1 saw node"
				}
				if got := l.Probe(l.Node, "tcp", netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal),
					want); got != want {
					t.Errorf("sources %v: from the node: %s; want %s", tc.sources, got, want)
				}
				if got := l.Ping(l.Client, proxytest.At("vip", family), "reply"); got != "reply" {
					t.Errorf("sources %v: ping: %s", tc.sources, got)
				}
				for _, f := range l.flows(proxytest.At("vip", family)) {
					fe := s.Frontend(f.VIP, f.Port)
					if fe != nil && !sortedset.ContainsAddr(fe.Sources, f.Client) {
						t.Errorf("sources %v: %s left an entry for port %d", tc.sources, f.Client, f.Port.Port)
					}
				}
			}
		}
	})
}

// A frontend that gets its first list of sources, or loses its last, refuses no client
// on it, not for an instant, however much else the transaction changes.
func TestFirstSourcesRefuseNoListedClient(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		open, restricted := crowdedState(nil, 0), crowdedState(proxytest.Prefixes("10.0.0.0/8", "fd00::/16"), 1)
		mustSet(t, p, open)
		var stop atomic.Bool
		var workers sync.WaitGroup
		var asked atomic.Int64
		for f := range state.SetID(2) {
			for _, network := range []string{"udp", "tcp"} {
				workers.Go(func() {
					for !stop.Load() {
						if got := l.Probe(l.Client, network,
							netip.AddrPortFrom(proxytest.At("vip", f), proxytest.PortLocal),
							""); got != "pod1 saw client" {
							t.Errorf("%s, IPv%c: %s", network, "46"[f], got)
						}
						asked.Add(1)
					}
				})
			}
		}
		steps := 30
		if testMode == ModeIPTables {
			steps = 6
		}
		for i := range steps {
			mustSet(t, p, []State{restricted, open}[i%2])
			for n := asked.Load() + 4; asked.Load() < n; time.Sleep(time.Millisecond) {
			}
		}
		stop.Store(true)
		workers.Wait()
		mustSet(t, p, restricted)
		checkKernel(t, restricted)
		if n := l.refusals(); n > 0 {
			t.Errorf("%d packets of who is on the list were refused, of %d flows", n, asked.Load())
		}
	})
}

// crowdedState is a frontend with these sources, and others that are not the same in
// the next State.
func crowdedState(sources []netip.Prefix, turn int) State {
	s := State{Node: "n1"}
	for f := range state.SetID(2) {
		v := &VIP{Addr: proxytest.At("vip", f)}
		for _, proto := range []Protocol{TCP, UDP} {
			fe := proxytest.PacketFrontends(proto, f)[0]
			fe.Sources = sources
			v.Frontends = append(v.Frontends, fe)
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, v)
	}
	for i := range 200 {
		a := netip.AddrFrom4([4]byte{192, 0, 3, byte(i)})
		fe := Frontend{
			Protocol: TCP, Port: uint16(80 + turn),
			External: Target{Backends: proxytest.Backends(0, "pod1", "pod2", "remote")},
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, &VIP{Addr: a, Frontends: []Frontend{fe}})
	}
	return s
}

// refusals is how many packets were dropped because of their source.
func (l *lab) refusals() (n int) {
	l.T.Helper()
	if testMode == ModeIPTables {
		return xtCount(l.T, "-A FANFARE-SOURCES ")
	}
	out, err := exec.Command("nft", "list", "chain", "inet", renderer.TableName, "forbidden").CombinedOutput()
	if err != nil {
		l.T.Fatalf("%v: %s", err, out)
	}
	_, rest, _ := strings.Cut(string(out), "counter packets ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		l.T.Fatalf("%v in %s", err, out)
	}
	return n
}

// A list that becomes shorter ends the flows of removed sources:
// their next packets vanish and open nothing. Others go on.
func TestSourcesEndFlows(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, sourcesState("10.0.0.0/8", "fd00::/16"))
		pods := []string{"10.244.1.0/24", "fd00:244:1::/64"}
		type open struct {
			from string
			to   netip.AddrPort
			net.Conn
		}
		var conns []open
		want := map[string]string{
			"client80": "pod1 saw client", "client81": "remote saw node", "pod280": "pod1 saw pod2",
			"pod281": "remote saw pod2",
		}
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp"} {
				for _, from := range []string{"client", "pod2"} {
					for _, port := range []uint16{proxytest.PortLocal, proxytest.PortRemote} {
						to := netip.AddrPortFrom(proxytest.At("vip", family), port)
						c := l.Connect(l.Ns(from), network, 0, to)
						if got, want := l.Ask(c), want[fmt.Sprint(from, port)]; got != want {
							t.Fatalf("%s from %s to %s: %s; want %s", network, from, to, got, want)
						}
						conns = append(conns, open{from, to, c})
					}
				}
			}
			to := netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal)
			if got := l.ProbeFrom(l.Client, "sctp", 4444, to, ""); got != "pod1 saw client" {
				t.Fatalf("sctp: %s", got)
			}
		}
		mustSet(t, p, sourcesState(pods...))
		swept(t, p)
		for _, c := range conns {
			want := "silence"
			if c.from == "pod2" {
				want = map[uint16]string{proxytest.PortLocal: "pod1 saw pod2",
					proxytest.PortRemote: "remote saw pod2"}[c.to.Port()]
			}
			if got := l.AskFor(c, want); got != want {
				t.Errorf("an open flow from %s %s to %s: %s; want %s", c.LocalAddr().Network(), c.from, c.to, got, want)
			}
		}
		for family := range state.SetID(2) {
			for _, f := range l.flows(proxytest.At("vip", family)) {
				if f.Client == proxytest.At("client", family) {
					t.Errorf("an entry of the client's for port %d of protocol %s is left", f.Port.Port, f.Port.Proto)
				}
			}
		}
		// Allowed again, the same ports serve.
		mustSet(t, p, sourcesState("10.0.0.0/8", "fd00::/16"))
		for family := range state.SetID(2) {
			to := netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal)
			if got := l.ProbeFrom(l.Client, "sctp", 4444, to, ""); got != "pod1 saw client" {
				t.Errorf("sctp, allowed again: %s", got)
			}
		}
	})
}
