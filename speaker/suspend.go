package speaker

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clockInterval is the time between two reads of the clock.
	clockInterval = 500 * time.Millisecond
	// suspendThreshold is a delay that no load explains.
	suspendThreshold = 2 * time.Second
)

// watchSuspend calls resumed after this process or its machine was suspended for a while:
// other nodes may have taken its addresses over meanwhile.
func watchSuspend(ctx context.Context, resumed func(pause time.Duration)) {
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
		if pause := now - last; pause > suspendThreshold {
			resumed(pause)
		}
		last = now
	}
}

// sinceBoot includes the time for which the machine was suspended, unlike Go's clock.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Duration(time.Now().UnixNano())
	}
	return time.Duration(t.Nano())
}

// resumed announces all L2 addresses again.
func (s *speaker) resumed(pause time.Duration) {
	s.Log.Warn("this process was suspended; announcing all layer 2 addresses again", "node", s.Node, "for", pause.Round(time.Millisecond))
	s.layer2.handover.reannounceAll()
}
