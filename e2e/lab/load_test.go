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
		{Loss{at(99), at(101), reset}, true},
		{Loss{at(499), at(520), reset}, true},
		{Loss{at(101), at(103), reset}, false},
		{Loss{at(90), at(99), reset}, false},
		{Loss{at(99), at(3099), errors.New("i/o timeout")}, false},
		{Loss{at(99), at(101), syscall.ECONNREFUSED}, false},
	} {
		interrupted, rest := Report{Lost: []Loss{c.loss}}.splitInterrupted(changes)
		if got := len(interrupted) == 1; got != c.interrupted || len(interrupted)+len(rest) != 1 {
			t.Errorf("%v: cut %v, rest %v: want cut %t", c.loss, interrupted, rest, c.interrupted)
		}
	}
}
