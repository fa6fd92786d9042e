package matrix

import (
	"testing"
	"time"
)

// A heartbeat measures how long this process did not run at a time.
type heartbeat struct {
	end     chan struct{}
	longest chan time.Duration
}

// beatInterval is the time between two beats.
const beatInterval = 5 * time.Millisecond

func startHeartbeat() heartbeat {
	h := heartbeat{make(chan struct{}), make(chan time.Duration)}
	go h.run()
	return h
}

func (h heartbeat) run() {
	ticks := time.NewTicker(beatInterval)
	defer ticks.Stop()
	g := gap{last: time.Now()}
	for {
		select {
		case <-ticks.C:
			g = g.beat(time.Now())
		case <-h.end:
			h.longest <- g.beat(time.Now()).longest
			return
		}
	}
}

// stop returns the longest time for which it did not run.
func (h heartbeat) stop() time.Duration {
	close(h.end)
	return <-h.longest
}

// A gap is the longest time between two beats, beyond the interval.
type gap struct {
	last    time.Time
	longest time.Duration
}

func (g gap) beat(now time.Time) gap {
	return gap{now, max(g.longest, now.Sub(g.last)-beatInterval)}
}

func TestLongestGap(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	g := gap{last: at(0)}
	for _, ms := range []int{5, 10, 15, 420, 425, 530} {
		g = g.beat(at(ms))
	}
	if want := 400 * time.Millisecond; g.longest != want {
		t.Errorf("the longest gap is %s, want %s", g.longest, want)
	}
}
