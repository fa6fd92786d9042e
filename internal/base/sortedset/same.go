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

// A Draft is a list that usually is a part of its Last version, or equals it: only from the first
// difference on it has a copy.
type Draft[T any] struct {
	Last []T
	Cap  int // how long the list may get, for its allocation

	same int // this many elements are those of Last
	list []T
}

// Add appends an element. equal compares it with that of Last.
func (d *Draft[T]) Add(t T, equal func(a, b T) bool) {
	switch {
	case d.list != nil:
		d.list = append(d.list, t)
	case d.same < len(d.Last) && equal(d.Last[d.same], t):
		d.same++
	case d.same == 0 && d.begin(t, equal):
	default:
		d.list = append(append(make([]T, 0, d.Cap), d.Last[:d.same]...), t)
	}
}

// begin lets the draft begin at an element of Last, and returns false if Last does not have it.
func (d *Draft[T]) begin(t T, equal func(a, b T) bool) bool {
	at := slices.IndexFunc(d.Last, func(l T) bool { return equal(l, t) })
	if at < 0 {
		return false
	}
	d.Last, d.same = d.Last[at:], 1
	return true
}

// List returns the list. It is a part of Last if Last has its elements in one stretch.
func (d *Draft[T]) List() []T {
	if d.list == nil {
		return d.Last[:d.same:d.same] // what is appended must not overwrite Last
	}
	return d.list
}

// Equal compares by ==.
func Equal[T comparable](a, b T) bool { return a == b }
