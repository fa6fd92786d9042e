package state

import (
	"math"
	"net/netip"
	"slices"
	"testing"
)

func maglevBackends(n int) []Backend {
	all := make([]Backend, n)
	for i := range all {
		all[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
	}
	return all
}

// addrsOf is the table with addresses in the place of indexes.
func addrsOf(backends []Backend) []netip.AddrPort {
	var out []netip.AddrPort
	for _, i := range MaglevSlots(backends) {
		out = append(out, backends[i].Addr)
	}
	return out
}

func shares(slots []int, n int) []int {
	count := make([]int, n)
	for _, i := range slots {
		count[i]++
	}
	return count
}

func TestMaglevSharesAreEven(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 50, 51, 204, 205, 818, 3276, 3277} {
		got := shares(MaglevSlots(maglevBackends(n)), n)
		if low, high := slices.Min(got), slices.Max(got); high-low > 1 || low < slotsPerBackend {
			t.Errorf("%d backends have %d to %d slots; want a difference of one at most, and %d at least", n, low, high,
				slotsPerBackend)
		}
	}
}

// Weights are kept to within a slot, and even the lightest backend has one.
func TestMaglevSharesFollowWeights(t *testing.T) {
	for _, weights := range [][]uint16{{1, 2}, {1, 1, 2, 4}, {0, 3, 1}, {7, 100, 100}, {1, math.MaxUint16},
		{1000, 1001, 999, 30, 5}} {
		backends := maglevBackends(len(weights))
		sum := 0
		for i, w := range weights {
			backends[i].Weight = w
			sum += backends[i].EffectiveWeight()
		}
		slots := MaglevSlots(backends)
		for i, got := range shares(slots, len(weights)) {
			want := float64(len(slots)) * float64(backends[i].EffectiveWeight()) / float64(sum)
			if math.Abs(float64(got)-want) > 2 || got == 0 {
				t.Errorf("weights %v: backend %d has %d of %d slots; want %.1f", weights, i, got, len(slots), want)
			}
		}
	}
}

// A backend that comes or goes moves its own share and little more.
func TestMaglevMovesLittle(t *testing.T) {
	for _, n := range []int{2, 3, 5, 10, 25, 50, 100, 500} {
		all := maglevBackends(n)
		before := addrsOf(all)
		worst, sum := 0, 0
		gone := min(n, 50)
		for i := range gone {
			after := addrsOf(slices.Concat(all[:i], all[i+1:]))
			if len(after) != len(before) {
				t.Fatalf("%d and %d backends have %d and %d slots", n, n-1, len(before), len(after))
			}
			moved := 0 // of those whose backend is still there
			for slot := range before {
				if before[slot] != all[i].Addr && before[slot] != after[slot] {
					moved++
				}
			}
			worst, sum = max(worst, moved), sum+moved
		}
		size := float64(len(before))
		mean, most := float64(sum)/float64(gone)/size, float64(worst)/size
		t.Logf("%d backends of %d slots: besides its own, one that goes moves %.1f %%, at most %.1f %%", n, len(before),
			100*mean, 100*most)
		if mean > 0.08 || most > 0.12 {
			t.Errorf("%d backends: %.1f %% moved, at most %.1f %%; want 8 and 12", n, 100*mean, 100*most)
		}
	}
}

// The table depends on the set of backends alone: not on the nodes they are on,
// nor on how zero weights are written.
func TestMaglevIsTheSameOnAllNodes(t *testing.T) {
	a, b := maglevBackends(9), maglevBackends(9)
	for i := range b {
		a[i].Node, b[i].Node, b[i].Weight = "n1", "n2", 1
	}
	if !slices.Equal(addrsOf(a), addrsOf(b)) {
		t.Error("tables differ")
	}
}

func BenchmarkMaglev(b *testing.B) {
	backends := maglevBackends(10)
	for b.Loop() {
		MaglevSlots(backends)
	}
}
