package gossip

import (
	"math/rand/v2"
	"testing"
)

func TestBootWindow(t *testing.T) {
	var w bootWindow
	for i, tt := range []struct {
		boot, seq uint64
		fresh     bool
	}{
		{7, 1, true}, {7, 1, false}, {7, 3, true}, {7, 2, true}, {7, 2, false}, {7, windowSize, true}, {7, 37, true},
		{7, 37, false}, {7, 2000, true}, {7, 2001 - windowSize, true}, {7, 2000 - windowSize, false},
		{9, 1, true}, // another process
		{7, 2001, false}, {9, 1, false}, {9, 200, true}, {9, 201, true}, {9, 200, false},
		{10, 1, true}, {9, 202, false}, {7, 2002, false}, {10, 2, true}, // after two restarts
		{10, 1 << 63, true}, {10, 3, false}, {10, 1<<63 + 1, true},
	} {
		if got := w.accept(tt.boot, tt.seq); got != tt.fresh {
			t.Errorf("%d: %d/%d is new: %v", i, tt.boot, tt.seq, got)
		}
	}
}

// The window accepts each number once, and all that are not older than it, in any order.
func TestWindowInAnyOrder(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var w window
	seen, newest := map[uint64]bool{}, uint64(0)
	for range 100_000 {
		seq := uint64(max(1, int64(newest)+random.Int64N(2*windowSize)-windowSize*3/2))
		if random.IntN(1000) == 0 {
			seq += random.Uint64N(5 * windowSize)
		}
		newest = max(newest, seq)
		want := !seen[seq] && newest-seq < windowSize
		if got := w.accept(seq); got != want {
			t.Fatalf("seed %d: %d, with %d as the newest: %t, want %t", seed, seq, newest, got, want)
		}
		seen[seq] = true
	}
}
