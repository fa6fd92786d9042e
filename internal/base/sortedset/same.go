package sortedset

import "slices"

// Keep returns was if now is equal to it, else now, so that Same detects no change.
func Keep[T comparable](was, now []T) []T {
	if was != nil && slices.Equal(was, now) {
		return was
	}
	return now
}

// Same reports whether a and b are the same slice, without comparing elements. It is false
// for equal slices in different arrays.
func Same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Equal compares by ==.
func Equal[T comparable](a, b T) bool { return a == b }
