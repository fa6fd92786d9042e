package retry

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Backoff returns pauses from first on, each twice as long, up to most. They vary by a fifth: 1,000 nodes that lose
// the API server together must not return to it together.
func Backoff(first, most time.Duration) *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.2, Multiplier: 2, MaxInterval: most}
	b.Reset() // a zero ExponentialBackOff pauses for 0 s
	return b
}
