package measure

import (
	"fmt"
	"slices"
	"time"
)

// A Sample holds the repeated measurements of one duration.
type Sample []time.Duration

// Quantile returns the smallest duration that a part q of all durations does not exceed.
func (s Sample) Quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// String returns the median and the 95th percentile.
func (s Sample) String() string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%s / %s", Pretty(s.Quantile(0.5)), Pretty(s.Quantile(0.95)))
}

// Pretty formats a duration with two or three significant digits.
func Pretty(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case ms < 0.9995:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 9.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.2f s", ms/1000)
	}
}
