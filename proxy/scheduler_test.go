package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

var networks = map[string]Protocol{"tcp": TCP, "udp": UDP, "sctp": SCTP}

// scheduleState is a frontend on each port for the same backends.
func scheduleState(scheduler Scheduler, backends [2][]Backend, ports ...uint16) State {
	s := State{Node: "n1"}
	for family := range state.SetID(2) {
		v := &VIP{Addr: proxytest.At("vip", family)}
		to := Target{Backends: backends[family], Remote: Preserve}
		for _, p := range []Protocol{TCP, UDP, SCTP} {
			for _, port := range ports {
				v.Frontends = append(v.Frontends, Frontend{
					Protocol: p, Port: port, External: to, Internal: to, Scheduler: scheduler,
				})
			}
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, v)
	}
	return s
}

func podBackends(names ...string) [2][]Backend {
	return [2][]Backend{proxytest.Backends(0, names...), proxytest.Backends(1, names...)}
}

// who names the backend that answers.
func (l *lab) who(from *nstest.NS, network string, port int, to netip.AddrPort) string {
	l.T.Helper()
	answer := l.ProbeFrom(from, network, port, to, "an answer")
	name, _, ok := strings.Cut(answer, " saw ")
	if !ok {
		l.T.Fatalf("%s to %s %s: %s", from.Name, network, to, answer)
	}
	return name
}

// Each backend has its turn, however the flows to other frontends, of other
// families and of other kinds of clients fall between.
func TestRoundRobin(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, scheduleState(RoundRobin, podBackends("pod1", "pod2", "pod3"), 80, 81))
		got := make(map[string][]string)
		for range 6 {
			for network := range networks {
				for family := range state.SetID(2) {
					for _, port := range []uint16{80, 81} {
						to := netip.AddrPortFrom(proxytest.At("vip", family), port)
						for _, from := range []*nstest.NS{l.Client, l.Node} {
							key := fmt.Sprint(from.Name, " to ", network, " ", to)
							got[key] = append(got[key], l.who(from, network, 0, to))
						}
					}
				}
			}
		}
		for flow, who := range got {
			first := slices.Clone(who[:3])
			slices.Sort(first)
			if !slices.Equal(first, []string{"pod1", "pod2", "pod3"}) || !slices.Equal(who[:3], who[3:]) {
				t.Errorf("%s: %v; want three in turn", flow, who)
			}
		}
	})
}

// The turn goes on where it was when other things change, and a chain goes with
// its frontend.
func TestRoundRobinKeepsItsTurn(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		one := scheduleState(RoundRobin, podBackends("pod1", "pod2"), 80)
		two := scheduleState(RoundRobin, podBackends("pod1", "pod2"), 80, 81)
		vip := netip.AddrPortFrom(proxytest.At("vip", 0), 80)
		chains := func() int { return strings.Count(proxytest.NFTSays(t, "list", "chains", "inet"), "chain ") }
		mustSet(t, p, State{Node: "n1"})
		bare := chains()
		mustSet(t, p, one)
		before := l.who(l.Client, "tcp", 0, vip)
		for i := range 4 {
			mustSet(t, p, []State{two, one}[i%2])
			who := l.who(l.Client, "tcp", 0, vip)
			if who == before {
				t.Errorf("%s twice in turn", who)
			}
			before = who
		}
		p.Close()
		q := newProxy(t)
		mustSet(t, q, one)
		if who := l.who(l.Client, "tcp", 0, vip); who == before {
			t.Errorf("after adoption: %s twice in turn", who)
		}
		mustSet(t, q, State{Node: "n1"})
		q.Recheck()
		mustSet(t, q, State{Node: "n1"})
		if n := chains(); n != bare {
			t.Errorf("%d chains are left, of %d at first", n, bare)
		}
	})
}

// A client has the same backend with every flow, and clients are spread.
func TestSourceHash(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		pods := []string{"pod1", "pod2", "pod3"}
		mustSet(t, p, scheduleState(SourceHash, podBackends(pods...), 80))
		for family := range state.SetID(2) {
			to := netip.AddrPortFrom(proxytest.At("vip", family), 80)
			for _, from := range []*nstest.NS{l.Client, l.Pod1, l.Pod2} {
				for network := range networks {
					source := proxytest.At(from.Name, family)
					want := pods[sourceSlot(source, len(pods))]
					for range 4 {
						if got := l.who(from, network, 0, to); got != want {
							t.Errorf("%s to %s %s: %s; want %s", from.Name, network, to, got, want)
						}
					}
				}
			}
		}
	})
}

// sourceSlot is the slot of a client.
func sourceSlot(client netip.Addr, slots int) int {
	if testMode == ModeIPTables && (client.Is6() || slots > state.MaxHashed) {
		return proxytest.ProgramSlot(client, slots)
	}
	return proxytest.KernelSlot(state.Encoding(nil).Addr(client), slots)
}

// The same among as many backends as the match cluster of iptables knows, and among more: but for the
// client's, none is there.
func TestSourceHashOfMany(t *testing.T) {
	for _, slots := range []int{state.MaxHashed, state.MaxHashed + 1, 40} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) { testSourceHashOf(t, slots) })
	}
}

func testSourceHashOf(t *testing.T, slots int) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		for _, from := range []*nstest.NS{l.Client, l.Pod2, l.Node} {
			var crowds [2][]Backend
			for family := range state.SetID(2) {
				slot := sourceSlot(proxytest.At(from.Name, family), slots)
				crowds[family] = proxytest.Crowd(slot, proxytest.At("pod1", family), slots-1).Backends
			}
			mustSet(t, p, scheduleState(SourceHash, crowds, 80))
			checkKernel(t, scheduleState(SourceHash, crowds, 80))
			for family := range state.SetID(2) {
				for _, network := range []string{"tcp", "udp"} {
					if got := l.who(from, network, 0,
						netip.AddrPortFrom(proxytest.At("vip", family), 80)); got != "pod1" {
						t.Errorf("%s to %s: %s; want pod1", from.Name, proxytest.At("vip", family), got)
					}
				}
			}
		}
	})
}

// A flow's backend follows from its source and the table, so that every node
// chooses the same; a backend that goes moves no flow of others but those whose
// slots moved.
func TestMaglevFlows(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		port := 20000
		for _, pods := range [][]string{{"pod1", "pod2", "pod3"}, {"pod1", "pod3"}, {"pod1", "pod2", "pod3"}} {
			mustSet(t, p, scheduleState(Maglev, podBackends(pods...), 80))
			for family := range state.SetID(2) {
				to := netip.AddrPortFrom(proxytest.At("vip", family), 80)
				slots := state.MaglevSlots(proxytest.Backends(family, pods...))
				for network := range networks {
					for range 6 {
						port++ // never the same flow twice
						want := pods[slots[flowSlot(netip.AddrPortFrom(proxytest.At("client", family), uint16(port)),
							len(slots))]]
						if got := l.who(l.Client, network, port, to); got != want {
							t.Errorf("client's port %d to %s %s: %s; want %s", port, network, to, got, want)
						}
					}
				}
			}
		}
	})
}

// flowSlot is the slot of a flow.
func flowSlot(client netip.AddrPort, slots int) int {
	if testMode == ModeIPTables {
		return proxytest.ProgramFlowSlot(client, slots)
	}
	return proxytest.KernelSlot(state.Encoding(nil).Addr(client.Addr()).Port(client.Port()), slots)
}

// Flows fall to backends by weight, at random: with three to one, 150 of 200, give
// or take five standard deviations.
func TestRandomByWeight(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		heavy := podBackends("pod1", "pod2")
		for family := range heavy {
			heavy[family][0].Weight = 3
		}
		mustSet(t, p, scheduleState(Random, heavy, 80))
		for family := range state.SetID(2) {
			n := 0
			for range 200 {
				if l.who(l.Client, "udp", 0, netip.AddrPortFrom(proxytest.At("vip", family), 80)) == "pod1" {
					n++
				}
			}
			if n < 119 || n > 181 {
				t.Errorf("%d of 200 flows have the backend with three quarters of the weight", n)
			}
		}
	})
}
