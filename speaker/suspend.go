package speaker

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clockInterval is between two looks at the clock.
	clockInterval = 500 * time.Millisecond
	// suspendThreshold is by how much a look is late that no load explains.
	suspendThreshold = 2 * time.Second
)

// watchSuspend calls thawed whenever this process has stood still for a while, as one that
// was stopped, or whose machine was: others may have taken its addresses over meanwhile.
func watchSuspend(ctx context.Context, thawed func(stood time.Duration)) {
	ticks := time.NewTicker(clockInterval)
	defer ticks.Stop()
	last := sinceBoot()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		now := sinceBoot()
		if stood := now - last; stood > suspendThreshold {
			thawed(stood)
		}
		last = now
	}
}

// sinceBoot also counts the time for which the machine was suspended, as Go's clock does
// not.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Duration(time.Now().UnixNano())
	}
	return time.Duration(t.Nano())
}

// resumed announces everything anew after this process stood still for a while.
func (s *speaker) resumed(stood time.Duration) {
	s.Log.Warn("this process stood still; what it answers for over L2 is announced anew", "node", s.Node, "for", stood.Round(time.Millisecond))
	s.layer2.handover.reannounceAll()
}
