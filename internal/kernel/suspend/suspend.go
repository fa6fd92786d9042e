package suspend

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// clockInterval is the time between two readings of Watch.
const clockInterval = 500 * time.Millisecond

// A Detector compares readings of a clock that follow one another at a short interval. The
// zero value is ready for use.
type Detector struct{ last time.Time }

// Pause records a reading, and returns the time since the one before if that is longer than
// threshold, which no load explains; otherwise 0.
func (d *Detector) Pause(now time.Time, threshold time.Duration) time.Duration {
	last := d.last
	d.last = now
	if pause := now.Sub(last); !last.IsZero() && pause > threshold {
		return pause
	}
	return 0
}

// Watch calls resumed after each pause that is longer than threshold, until ctx ends. It
// includes the time for which the machine was suspended, unlike Go's clock.
func Watch(ctx context.Context, threshold time.Duration, resumed func(pause time.Duration)) {
	ticks := time.NewTicker(clockInterval)
	defer ticks.Stop()
	var d Detector
	d.Pause(bootTime(), threshold)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if pause := d.Pause(bootTime(), threshold); pause > 0 {
			resumed(pause)
		}
	}
}

// bootTime reads CLOCK_BOOTTIME, as a time after 1970.
func bootTime() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Now()
	}
	return time.Unix(t.Unix())
}
