package measure

import (
	"fmt"
	"slices"
	"time"
)

// A Sample is how long one thing took, each time.
type Sample []time.Duration

// Quantile is the smallest duration that is not exceeded by a part q of all.
func (s Sample) Quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// String is the median and the 95th percentile.
func (s Sample) String() string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%s / %s", Pretty(s.Quantile(0.5)), Pretty(s.Quantile(0.95)))
}

// Pretty writes a duration with two or three digits that matter.
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
