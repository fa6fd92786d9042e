package lab

import (
	"context"
	"fmt"
	"time"
)

// Settle is how long is waited for what takes milliseconds, or a few seconds, on a
// machine that has nothing else to do. Other machines have, and how long it took is
// for the scenario to report.
const Settle = 30 * time.Second

// Shared is the Slack of a machine that other programs use too, as that of tests is.
const Shared = 50

// within is a bound on a delay in this lab.
func (l *Lab) within(bound time.Duration) time.Duration {
	return bound * time.Duration(max(1, l.Slack))
}

// Await calls probe every few milliseconds until it returns nil. At the limit
// the error is the probe's last one.
func Await(ctx context.Context, limit time.Duration, what string, probe func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, limit, err)
		}
	}
}

// pause waits for a moment of a schedule, which is part of a scenario and not a
// condition: the seconds that a pod takes to stop, for instance.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
