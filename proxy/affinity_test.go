package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// affinityState gives each of two ports turns, which affinity overrides.
func affinityState(external, internal [2][]Backend) State {
	s := State{Node: "n1", Clients: LocalClients{InterfacePrefix: "cali"}}
	for family := range state.SetID(2) {
		v := &VIP{Addr: proxytest.At("vip", family)}
		for _, p := range []Protocol{TCP, UDP, SCTP} {
			for _, port := range []uint16{80, 81} {
				v.Frontends = append(v.Frontends, Frontend{
					Protocol: p, Port: port, Scheduler: RoundRobin, Affinity: time.Hour,
					External: Target{Backends: external[family], Remote: Masquerade},
					Internal: Target{Backends: internal[family], Remote: Preserve},
				})
			}
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, v)
	}
	return s
}

// addClient lets a frontend remember a client.
func addClient(client netip.Addr, network string, to, backend netip.AddrPort, lifetime string) string {
	proto := map[string]Protocol{"tcp": TCP, "udp": UDP, "sctp": SCTP}[network]
	set, element := proxytest.AffinityEntry(client, to.Addr(), state.Port{Proto: proto, Port: to.Port()}, backend)
	key, number, _ := strings.Cut(element, " : ")
	return fmt.Sprintf("add element inet fanfare %s { %s %s : %s }\n", set, key, lifetime, number)
}

// eachFlow calls f for every protocol, family and port of an affinityState.
func eachFlow(f func(network string, to netip.AddrPort)) {
	for _, network := range []string{"tcp", "udp", "sctp"} {
		for family := range state.SetID(2) {
			for _, port := range []uint16{80, 81} {
				f(network, netip.AddrPortFrom(proxytest.At("vip", family), port))
			}
		}
	}
}

// A client comes back to its backend, whatever kind of client it is and wherever
// the backend; each frontend remembers for itself.
func TestAffinity(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		for _, pair := range [][]string{{"pod1", "pod2"}, {"node", "remote"}} {
			mustSet(t, p, affinityState(podBackends(pair...), podBackends(pair...)))
			eachFlow(func(network string, to netip.AddrPort) {
				for _, from := range []*nstest.NS{l.Client, l.Pod2, l.Pod3, l.Node} {
					first := l.who(from, network, 0, to)
					for range 3 {
						if got := l.who(from, network, 0, to); got != first {
							t.Errorf("%s to %s %s: %s, then %s", from.Name, network, to, first, got)
						}
					}
				}
			})
			if n := len(proxytest.Affinity(t)); n != 4*12 {
				t.Errorf("%d entries; want one for each client and frontend, 48", n)
			}
		}
	})
}

// A client leaves a backend that goes, at once, and no other; it keeps the next one
// when the first comes back.
func TestAffinityOfRemovedBackend(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		all, fewer := podBackends("pod1", "pod2", "pod3"), podBackends("pod1", "pod3")
		mustSet(t, p, affinityState(all, all))
		had := make(map[string]string)
		ask := func(check func(flow, had, got string)) {
			t.Helper()
			eachFlow(func(network string, to netip.AddrPort) {
				for _, from := range []*nstest.NS{l.Client, l.Pod1, l.Node} {
					flow := fmt.Sprint(from.Name, " to ", network, " ", to)
					got := l.who(from, network, 0, to)
					check(flow, had[flow], got)
					had[flow] = got
				}
			})
		}
		ask(func(_, _, _ string) {})
		mustSet(t, p, affinityState(fewer, fewer))
		ask(func(flow, had, got string) {
			if got == "pod2" || had != "pod2" && got != had {
				t.Errorf("%s: %s, then %s without pod2", flow, had, got)
			}
		})
		mustSet(t, p, affinityState(all, all))
		ask(func(flow, had, got string) {
			if got != had {
				t.Errorf("%s: %s, then %s with pod2 again", flow, had, got)
			}
		})
	})
}

// What the kernel has learned is no disturbance, and outlives the process and
// changes of other things.
func TestAffinityIsAdopted(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		two, three := podBackends("pod2", "pod3"), podBackends("pod1", "pod2", "pod3")
		mustSet(t, p, affinityState(two, two))
		to := netip.AddrPortFrom(proxytest.At("vip", 0), 80)
		first := l.who(l.Client, "tcp", 0, to)
		p.Recheck()
		mustSet(t, p, affinityState(two, two))
		p.Close()
		q := newProxy(t)
		for _, s := range []State{affinityState(three, three), affinityState(two, three)} {
			mustSet(t, q, s)
			checkKernel(t, s)
			for range 3 {
				if got := l.who(l.Client, "tcp", 0, to); got != first {
					t.Errorf("%s, then %s", first, got)
				}
			}
		}
		// This notification comes after all earlier ones.
		proxytest.NFT(t, "add element inet fanfare vips4 { 203.0.113.1 }")
		awaitChanged(t, q, "a change")
		mustSet(t, q, affinityState(two, three))
		if s := q.Status(); s.Repairs != 1 || !strings.HasPrefix(s.Found, "1 unknown") {
			t.Errorf("%d repairs, found %q; want the one of the test", s.Repairs, s.Found)
		}
		if got := l.who(l.Client, "tcp", 0, to); got != first {
			t.Errorf("after the repair: %s, then %s", first, got)
		}
	})
}

// A client that becomes one of another kind, as networks of pods change, loses no packet
// by what it remembers: its next flow goes to a backend that its new kind has. Others
// keep theirs.
func TestAffinityOfClientChangingSide(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := affinityState(podBackends("pod1", "pod3"), podBackends("pod3", "remote"))
		for _, step := range []struct {
			clients  LocalClients
			internal bool // pod2 is
		}{
			{LocalClients{}, false},
			{LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64")}, true},
			{LocalClients{InterfacePrefix: "eth"}, false},
			{LocalClients{InterfacePrefix: "cali"}, true},
			{LocalClients{CIDRs: proxytest.Prefixes("10.9.0.0/16")}, false},
		} {
			s.Clients = step.clients
			mustSet(t, p, s)
			checkKernel(t, s)
			for range 4 {
				eachFlow(func(network string, to netip.AddrPort) {
					got := l.Probe(l.Pod2, network, to, proxytest.Unresent)
					who, _, _ := strings.Cut(got, " saw ")
					want := map[bool][]string{false: {"pod1", "pod3"}, true: {"remote", "pod3"}}[step.internal]
					if !slices.Contains(want, who) {
						t.Errorf("clients %+v: pod2 to %s %s: %s; want one of %v", step.clients, network, to, got, want)
					}
				})
			}
		}
		// Who stays what it was keeps its backend.
		to, first := netip.AddrPortFrom(proxytest.At("vip", 0), 80), ""
		for _, cidr := range []string{"10.244.1.0/24", "10.244.0.0/16", "10.0.0.0/8"} {
			s.Clients.CIDRs = proxytest.Prefixes(cidr)
			mustSet(t, p, s)
			got := l.who(l.Pod2, "udp", 0, to)
			if first = cmp.Or(first, got); got != first {
				t.Errorf("%s, then %s, though pod2 was internal all along", first, got)
			}
		}
	})
}

// A table of another schema is replaced by one that learns as well.
func TestAffinityAfterUpgrade(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		pods := podBackends("pod1", "pod2", "pod3")
		s := affinityState(pods, pods)
		p := newProxy(t)
		mustSet(t, p, s)
		p.Close()
		proxytest.NFT(t, "delete chain inet fanfare "+proxytest.Schema(t)+"; add chain inet fanfare schema-0")
		q := newProxy(t)
		mustSet(t, q, s)
		checkKernel(t, s)
		for family := range state.SetID(2) {
			to := netip.AddrPortFrom(proxytest.At("vip", family), 80)
			first := l.who(l.Client, "tcp", 0, to)
			for range 3 {
				if got := l.who(l.Client, "tcp", 0, to); got != first {
					t.Errorf("%s: %s, then %s", to, first, got)
				}
			}
		}
	})
}

// An entry for what is no backend of the client's side is never followed, however
// it came there, and costs no packet.
func TestStaleAffinity(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, affinityState(podBackends("pod1"), podBackends("pod1", "remote")))
		for _, backend := range []string{"pod3", "remote"} {
			var entries strings.Builder
			var all sync.WaitGroup
			eachFlow(func(network string, to netip.AddrPort) {
				f := state.Family(to.Addr())
				for _, client := range []*nstest.NS{l.Client, l.Pod2} {
					entries.WriteString(addClient(proxytest.At(client.Name, f), network, to,
						netip.AddrPortFrom(proxytest.At(backend, f), 8080), "timeout 1h"))
				}
			})
			proxytest.NFT(t, entries.String())
			eachFlow(func(network string, to netip.AddrPort) {
				for _, client := range []*nstest.NS{l.Client, l.Pod2} {
					all.Go(func() {
						want := []string{"pod1"}
						switch {
						case client == l.Pod2 && backend == "remote":
							want = []string{"remote"}
						case client == l.Pod2:
							want = []string{"pod1", "remote"}
						}
						if got := l.who(client, network, 0, to); !slices.Contains(want, got) {
							t.Errorf("%s to %s %s, once at %s: %s; want one of %v", client.Name, network, to, backend,
								got, want)
						}
					})
				}
			})
			all.Wait()
			forgetAll(t)
		}
	})
}

// An entry ends after the timeout, also if its client comes again: nodes that remember other
// choices than the others would otherwise split a client for good.
func TestAffinityTimeout(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := affinityState(podBackends("pod1", "pod2"), podBackends("pod1", "pod2"))
		mustSet(t, p, s)
		to := netip.AddrPortFrom(proxytest.At("vip", 0), 80)
		other := map[string]string{"pod1": "pod2", "pod2": "pod1"}[l.who(l.Client, "tcp", 0, to)]
		forgetAll(t)
		proxytest.NFT(t, addClient(proxytest.At("client", 0), "tcp", to,
			netip.AddrPortFrom(proxytest.At(other, 0), 8080), "timeout 1h expires 100s"))
		if got := l.who(l.Client, "tcp", 0, to); got != other {
			t.Errorf("%s; want %s, which is remembered", got, other)
		}
		out, err := exec.Command("nft", "list", "map", "inet", renderer.TableName,
			state.AffinityMap(0)).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "expires 1m") {
			t.Errorf("want an entry that still expires in 100 seconds: %v\n%s", err, out)
		}
		forgetAll(t)
		for v := range s.VIPs.All() {
			v = &VIP{Addr: v.Addr, Frontends: slices.Clone(v.Frontends)}
			s.VIPs = proxytest.WithVIPs(s.VIPs, v)
			for i := range v.Frontends {
				v.Frontends[i].Affinity = time.Second
			}
		}
		mustSet(t, p, s)
		checkKernel(t, s)
		eachFlow(func(network string, to netip.AddrPort) { l.who(l.Client, network, 0, to) })
		for end := time.Now().Add(20 * time.Second); len(proxytest.Affinity(t)) > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%v have not expired", proxytest.Affinity(t))
			}
		}
	})
}

// A node that has not seen a client chooses as all others do: by the client's address, whatever the
// scheduler. Behind a router that spreads flows over several nodes, a client thus has one backend.
func TestAffinityIsTheSameOnAllNodes(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		names := []string{"pod1", "pod2", "pod3"}
		pods := podBackends(names...)
		for _, scheduler := range []Scheduler{Random, RoundRobin, SourceHash, Maglev} {
			s := affinityState(pods, pods)
			for v := range s.VIPs.All() {
				for i := range v.Frontends {
					v.Frontends[i].Scheduler = scheduler
				}
			}
			mustSet(t, p, s)
			forgetAll(t)
			eachFlow(func(network string, to netip.AddrPort) {
				f := state.Family(to.Addr())
				for _, from := range []*nstest.NS{l.Client, l.Pod1} {
					if got, want := l.who(from, network, 0, to),
						names[clientSlot(proxytest.At(from.Name, f), pods[f])]; got != want {
						t.Errorf("%s: %s to %s %s: %s, want %s", scheduler, from.Name, network, to, got, want)
					}
				}
			})
		}
	})
}

// clientSlot is the index of a client's backend.
func clientSlot(client netip.Addr, backends []Backend) int {
	slot := proxytest.KernelSlot(state.Encoding(nil).Addr(client), state.MaxSlots)
	if testMode == ModeIPTables {
		slot = proxytest.ProgramSlot(client, state.MaxSlots)
	}
	return state.ClientSlots(backends, state.MaxSlots)[slot]
}
