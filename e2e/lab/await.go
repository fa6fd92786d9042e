package lab

import (
	"context"
	"fmt"
	"time"
)

// Settle bounds the wait for a condition that takes seconds at most on an idle machine. It
// is long because machines are busy; the scenario reports how long things took.
const Settle = 30 * time.Second

// Shared is the Slack for a machine that runs other programs too, as in tests.
const Shared = 50

// within returns a bound on a delay, multiplied by the lab's Slack.
func (l *Lab) within(bound time.Duration) time.Duration {
	return bound * time.Duration(max(1, l.Slack))
}

// Await calls probe every few milliseconds until it returns nil. After the limit it returns
// the last error of probe.
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

// pause waits for the next moment of a schedule, such as the seconds that a pod takes to
// stop. It is no substitute for waiting for a condition.
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
