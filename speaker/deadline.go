package speaker

import "time"

// earliest returns the first of times that is later than after, and zero if none is.
func earliest(after time.Time, times ...time.Time) (first time.Time) {
	for _, t := range times {
		if t.After(after) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
