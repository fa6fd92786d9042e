package gossip

import (
	"math"
	"testing"
	"time"
)

// A suspect has 100 ms or more to refute, in a cluster of any size, and not so long that a death
// among 1,000 nodes is detected late.
func TestSuspicionTime(t *testing.T) {
	for _, tt := range []struct {
		nodes int
		want  time.Duration
	}{{1, 120}, {10, 120}, {49, 202}, {50, 101}, {100, 120}, {1000, 180}, {5000, 221}} {
		c := config(tt.nodes)
		// As memberlist computes it.
		got := time.Duration(float64(c.SuspicionMult) * math.Max(1,
			math.Log10(float64(tt.nodes))) * float64(c.ProbeInterval))
		if got := got.Truncate(time.Millisecond); got != tt.want*time.Millisecond {
			t.Errorf("%d nodes: a suspect has %s, want %s", tt.nodes, got, tt.want*time.Millisecond)
		}
	}
}
