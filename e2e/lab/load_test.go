package lab

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// Only a reset during a route change counts as interrupted by the router.
func TestInterruptedNeedsResetAtRouteChange(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	reset := fmt.Errorf("receive: %w", syscall.ECONNRESET)
	changes := []time.Time{at(100), at(500)}
	for _, c := range []struct {
		loss        Loss
		interrupted bool
	}{
		{Loss{Begin: at(99), End: at(101), Err: reset}, true},
		{Loss{Begin: at(499), End: at(520), Err: reset}, true},
		{Loss{Begin: at(101), End: at(103), Err: reset}, false},
		{Loss{Begin: at(90), End: at(99), Err: reset}, false},
		{Loss{Begin: at(99), End: at(3099), Err: errors.New("i/o timeout")}, false},
		{Loss{Begin: at(99), End: at(101), Err: syscall.ECONNREFUSED}, false},
	} {
		interrupted, rest := Report{Lost: []Loss{c.loss}}.splitInterrupted(changes)
		if got := len(interrupted) == 1; got != c.interrupted || len(interrupted)+len(rest) != 1 {
			t.Errorf("%v: cut %v, rest %v: want cut %t", c.loss, interrupted, rest, c.interrupted)
		}
	}
}
