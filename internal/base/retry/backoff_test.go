package retry

import (
	"testing"
	"time"
)

// The pauses double from the first to the most, and no attempt is the last.
func TestBackoff(t *testing.T) {
	b := Backoff(time.Second, 5*time.Second)
	for round := range 2 {
		for i, seconds := range []time.Duration{1, 2, 4, 5, 5} {
			want := seconds * time.Second
			if got := b.NextBackOff(); got < want*4/5 || got > want*6/5 {
				t.Errorf("round %d: pause %d is %s, want %s with a fifth more or less", round, i, got, want)
			}
		}
		b.Reset()
	}
}
