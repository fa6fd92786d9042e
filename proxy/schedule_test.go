package proxy

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/nstest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

var networks = map[string]Protocol{"tcp": TCP, "udp": UDP, "sctp": SCTP}

// scheduleState is a frontend on each port for the same backends.
func scheduleState(scheduler Scheduler, backends [2][]Backend, ports ...uint16) State {
	s := State{Node: "n1"}
	for family := range state.SetID(2) {
		v := &VIP{Addr: at("vip", family)}
		to := Target{Backends: backends[family], Remote: Preserve}
		for _, p := range []Protocol{TCP, UDP, SCTP} {
			for _, port := range ports {
				v.Frontends = append(v.Frontends, Frontend{Protocol: p, Port: port, External: to, Internal: to, Scheduler: scheduler})
			}
		}
		s.VIPs = append(s.VIPs, v)
	}
	return s
}

func podBackends(names ...string) [2][]Backend {
	return [2][]Backend{backends(0, names...), backends(1, names...)}
}

// who names the backend that answers.
func (l *lab) who(from *nstest.NS, network string, port int, to netip.AddrPort) string {
	l.t.Helper()
	answer := l.probeFrom(from, network, port, to, "an answer")
	name, _, ok := strings.Cut(answer, " saw ")
	if !ok {
		l.t.Fatalf("%s to %s %s: %s", from.Name, network, to, answer)
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
						to := netip.AddrPortFrom(at("vip", family), port)
						for _, from := range []*nstest.NS{l.client, l.node} {
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
	inNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		one := scheduleState(RoundRobin, podBackends("pod1", "pod2"), 80)
		two := scheduleState(RoundRobin, podBackends("pod1", "pod2"), 80, 81)
		vip := netip.AddrPortFrom(at("vip", 0), 80)
		mustSet(t, p, one)
		before := l.who(l.client, "tcp", 0, vip)
		for i := range 4 {
			mustSet(t, p, []State{two, one}[i%2])
			who := l.who(l.client, "tcp", 0, vip)
			if who == before {
				t.Errorf("%s twice in turn", who)
			}
			before = who
		}
		p.Close()
		q := newProxy(t)
		mustSet(t, q, one)
		if who := l.who(l.client, "tcp", 0, vip); who == before {
			t.Errorf("after adoption: %s twice in turn", who)
		}
		mustSet(t, q, State{Node: "n1"})
		q.Recheck()
		mustSet(t, q, State{Node: "n1"})
		got, err := readTable(q.sock)
		if err != nil {
			t.Fatal(err)
		}
		if made := got.madeChains(); len(made) > 0 {
			t.Errorf("chains %v are left", made)
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
			to := netip.AddrPortFrom(at("vip", family), 80)
			for _, from := range []*nstest.NS{l.client, l.pod1, l.pod2} {
				for network := range networks {
					source := at(from.Name, family)
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
		return programSlot(client, slots)
	}
	return kernelSlot(state.Encoding(nil).Addr(client), slots)
}

// The same among more backends than the match cluster of iptables knows: but for the
// client's, none is there.
func TestSourceHashOfMany(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		for _, from := range []*nstest.NS{l.client, l.pod2, l.node} {
			var crowds [2][]Backend
			for family := range state.SetID(2) {
				slot := sourceSlot(at(from.Name, family), state.MaxHashed+8)
				crowds[family] = crowd(slot, at("pod1", family), state.MaxHashed+7).Backends
			}
			mustSet(t, p, scheduleState(SourceHash, crowds, 80))
			checkKernel(t, scheduleState(SourceHash, crowds, 80))
			for family := range state.SetID(2) {
				for _, network := range []string{"tcp", "udp"} {
					if got := l.who(from, network, 0, netip.AddrPortFrom(at("vip", family), 80)); got != "pod1" {
						t.Errorf("%s to %s: %s; want pod1", from.Name, at("vip", family), got)
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
				to := netip.AddrPortFrom(at("vip", family), 80)
				slots := state.MaglevSlots(backends(family, pods...))
				for network := range networks {
					for range 6 {
						port++ // never the same flow twice
						want := pods[slots[flowSlot(netip.AddrPortFrom(at("client", family), uint16(port)), len(slots))]]
						if got := l.who(l.client, network, port, to); got != want {
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
		return programFlowSlot(client, slots)
	}
	return kernelSlot(state.Encoding(nil).Addr(client.Addr()).Port(client.Port()), slots)
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
				if l.who(l.client, "udp", 0, netip.AddrPortFrom(at("vip", family), 80)) == "pod1" {
					n++
				}
			}
			if n < 119 || n > 181 {
				t.Errorf("%d of 200 flows have the backend with three quarters of the weight", n)
			}
		}
	})
}

// kernelSlot is what the kernel makes of "jhash … mod n seed 0xfa17" over these
// bytes, a multiple of four (linux/jhash.h, and reciprocal_scale in nft_hash.c).
func kernelSlot(b []byte, n int) int {
	word := func() (w uint32) {
		if len(b) >= 4 {
			w = binary.NativeEndian.Uint32(b)
			b = b[4:]
		}
		return w
	}
	start := 0xdeadbeef + uint32(len(b)) + 0xfa17
	x, y, z := start, start, start
	for len(b) > 12 {
		x, y, z = x+word(), y+word(), z+word()
		x -= z
		x ^= bits.RotateLeft32(z, 4)
		z += y
		y -= x
		y ^= bits.RotateLeft32(x, 6)
		x += z
		z -= y
		z ^= bits.RotateLeft32(y, 8)
		y += x
		x -= z
		x ^= bits.RotateLeft32(z, 16)
		z += y
		y -= x
		y ^= bits.RotateLeft32(x, 19)
		x += z
		z -= y
		z ^= bits.RotateLeft32(y, 4)
		y += x
	}
	x, y, z = x+word(), y+word(), z+word()
	for _, m := range []struct {
		to, from *uint32
		by       int
	}{{&z, &y, 14}, {&x, &z, 11}, {&y, &x, 25}, {&z, &y, 16}, {&x, &z, 4}, {&y, &x, 14}, {&z, &y, 24}} {
		*m.to ^= *m.from
		*m.to -= bits.RotateLeft32(*m.from, m.by)
	}
	return int(uint64(z) * uint64(n) >> 32)
}
