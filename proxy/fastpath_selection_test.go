package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A selectionWorld is a State that changes at random. Pods are few, so that frontends share them, and so
// are reasons to leave one to the rules, so that some are taken.
type selectionWorld struct {
	*rand.Rand
	state State
}

func (w *selectionWorld) frontend(port uint16) Frontend {
	f := Frontend{Protocol: []Protocol{TCP, TCP, UDP, SCTP}[w.IntN(4)], Port: port}
	for pod := range byte(24) {
		if w.IntN(14) == 0 {
			b := Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, pod}), 80), Node: "n1"}
			if w.IntN(40) == 0 {
				b.Node = "n2"
			}
			f.External.Backends = append(f.External.Backends, b)
		}
	}
	if w.IntN(12) == 0 {
		f.Affinity = time.Hour
	}
	return f
}

func (w *selectionWorld) vip(a netip.Addr) *VIP {
	v := &VIP{Addr: a}
	for i := range w.IntN(4) {
		v.Frontends = append(v.Frontends, w.frontend(uint16(80+i)))
	}
	slices.SortFunc(v.Frontends, func(a, b Frontend) int { return state.CompareFrontends(&a, &b) })
	return v
}

// step changes some VIPs, or one of them alone, and now and then the node.
func (w *selectionWorld) step() {
	var next []*VIP
	rare := 2 + w.IntN(30)
	for i := range byte(20) {
		a := netip.AddrFrom4([4]byte{192, 0, 2, i})
		was := w.state.VIP(a)
		switch {
		case w.IntN(rare) > 0 && was != nil:
			next = append(next, was)
		case w.IntN(rare) > 0 && was == nil, w.IntN(3) == 0:
		default:
			next = append(next, w.vip(a))
		}
	}
	w.state.VIPs = proxytest.VIPsOf(next...)
}

// leftOf finds the frontends that are left to the rules by the definition alone: frontends that must be by
// themselves, and again and again their neighbours.
func leftOf(s *State) map[frontendKey]bool {
	left, held := make(map[frontendKey]bool), make(map[frontendKey]bool)
	for before := -1; before != len(left); {
		before = len(left)
		for v := range s.VIPs.All() {
			for i := range v.Frontends {
				f := &v.Frontends[i]
				shared := func(b Backend) bool { return held[frontendKey{b.Addr, f.Protocol}] }
				if whyRules(f, s.Node) == "" && !slices.ContainsFunc(f.External.Backends, shared) {
					continue
				}
				left[keyOf(f, v)] = true
				for _, b := range f.External.Backends {
					if onNode(b, s.Node) {
						held[frontendKey{b.Addr, f.Protocol}] = true
					}
				}
			}
		}
	}
	return left
}

// Whatever changes, what is selected step by step is what is selected of the State alone, and that is
// what the definition says; what is as it was is the same.
func TestSelectionEqualsDefinition(t *testing.T) {
	seed := rand.Uint64()
	for world := range uint64(300) {
		w := &selectionWorld{Rand: rand.New(rand.NewPCG(seed, world)), state: State{Node: "n1"}}
		n := newSelection("n1")
		var before fastpath.State
		for step := range 30 {
			w.step()
			got := n.state(&w.state)
			if why := wrongSelection(n, &w.state, before, got); why != "" {
				t.Fatalf("seed %d, world %d, step %d: %s", seed, world, step, why)
			}
			before = got
		}
	}
}

func wrongSelection(n *selection, s *State, before, got fastpath.State) string {
	left, taken := leftOf(s), 0
	if len(got.VIPs) != s.VIPs.Len() {
		return fmt.Sprintf("%d VIPs of %d", len(got.VIPs), s.VIPs.Len())
	}
	for i, v := range s.VIPs.Slice() {
		want := fastVIP(v, s.Node)
		for j := range want {
			if want[j].Take = !left[frontendKey{want[j].Addr, Protocol(want[j].Protocol)}]; want[j].Take {
				taken++
			}
		}
		alike := func(a, b fastpath.Frontend) bool {
			return a.Addr == b.Addr && a.Protocol == b.Protocol && a.Take == b.Take &&
				slices.Equal(a.Backends, b.Backends) && slices.Equal(a.Draining, b.Draining) &&
				slices.Equal(a.Replying, b.Replying)
		}
		if got.VIPs[i].Addr != v.Addr || !slices.EqualFunc(got.VIPs[i].Frontends, want, alike) {
			return fmt.Sprintf("%+v\nwant %+v", got.VIPs[i], want)
		}
		at, found := slices.BinarySearchFunc(before.VIPs, v.Addr,
			func(v *fastpath.VIP, a netip.Addr) int { return v.Addr.Compare(a) })
		if kept := found && before.VIPs[at] == got.VIPs[i]; kept && n.turned[v] {
			return fmt.Sprintf("%s turned, and is the same", v.Addr)
		}
	}
	for key := range n.fronts {
		if why := n.why(key); (why != "") != left[key] {
			return fmt.Sprintf("%s %s is left for %q; want %v", key.protocol, key.addr, why, left[key])
		}
	}
	if n.offloaded != taken || len(n.fronts) < len(left) {
		return fmt.Sprintf("%d are counted; want %d", n.offloaded, taken)
	}
	return ""
}

// What did not change is the same, and so is what has a backend in common with what did, if that is taken still.
func TestSelectionKeepsWhatIs(t *testing.T) {
	s := proxytest.BenchState(3)
	n := newSelection("n1")
	before := n.state(&s)
	third := func() *VIP { return &VIP{Addr: s.VIPs.At(2).Addr, Frontends: slices.Clone(s.VIPs.At(2).Frontends)} }
	s.VIPs = proxytest.WithVIPs(s.VIPs, proxytest.BenchVIP(1, 1), third())
	s.VIPs.At(2).Frontends[0].External = s.VIPs.At(0).Frontends[0].External
	after := n.state(&s)
	for i, want := range []bool{true, false, false} {
		if got := before.VIPs[i] == after.VIPs[i]; got != want {
			t.Errorf("%s is the same: %v; want %v", before.VIPs[i].Addr, got, want)
		}
	}
	s.VIPs = proxytest.WithVIPs(s.VIPs, third())
	s.VIPs.At(2).Frontends[0].Affinity = time.Hour
	if last := n.state(&s); last.VIPs[0] == after.VIPs[0] || last.VIPs[0].Frontends[0].Take ||
		last.VIPs[1] != after.VIPs[1] {
		t.Errorf("%+v shares its backends with what is left to the rules", last.VIPs[0])
	}
}

// One endpoint of one of 10,000 VIPs of ten pods changes: by what changed, and by a look at all.
func BenchmarkSelection(b *testing.B) {
	s := State{Node: "n1"}
	vip := func(i, version int) *VIP {
		v := proxytest.BenchVIP(i, version)
		for pod := range byte(8) {
			v.Frontends[0].External.Backends = append(v.Frontends[0].External.Backends,
				Backend{
					Node: "n1", Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, pod, byte(i >> 8), byte(i)}),
						8080),
				})
		}
		return v
	}
	for i := range benchVIPs {
		s.VIPs = proxytest.WithVIPs(s.VIPs, vip(i, 0))
	}
	b.Run("change", func(b *testing.B) {
		n := newSelection("n1")
		n.state(&s)
		version := 0
		for b.Loop() {
			version++
			next := s
			next.VIPs = proxytest.WithVIPs(s.VIPs, vip(benchVIPs/2, version))
			n.state(&next)
		}
	})
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			newSelection("n1").state(&s)
		}
	})
}

// A Service may have 16,384 ports that lead to one port of one pod, and a reason to leave them to the rules. When its
// endpoints change, each of them goes and comes: that must not cost the square of their number.
func TestSelectionOfManyPortsOfOneBackend(t *testing.T) {
	const ports, bytesPerPort = 16_384, 4096
	vip := func(second string) *VIP {
		v := &VIP{Addr: netip.MustParseAddr("192.0.2.1")}
		for port := range ports {
			backends := []Backend{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Node: "n1"}}
			if second != "" {
				backends = append(backends, Backend{Addr: netip.MustParseAddrPort(second), Node: "n1"})
			}
			v.Frontends = append(v.Frontends, Frontend{
				Protocol: TCP, Port: uint16(port + 1), Affinity: time.Hour, External: Target{Backends: backends},
			})
		}
		return v
	}
	s := newSelection("n1")
	s.state(&State{Node: "n1", VIPs: proxytest.VIPsOf(vip(""))})
	changed := &State{Node: "n1", VIPs: proxytest.VIPsOf(vip("10.0.0.2:80"))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.state(changed)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > ports*bytesPerPort {
		t.Errorf("a change of %d ports took %d bytes", ports, n)
	}
}
