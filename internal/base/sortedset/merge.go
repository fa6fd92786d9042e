package sortedset

import "iter"

// Merge returns in order what differs between two lists, which are sorted by compare: under each key the element of a
// and that of b, nil if the list has none. It compares neighbours by equal first, because most of them are.
func Merge[T any](a, b []T, compare func(a, b T) int, equal func(a, b T) bool) iter.Seq2[*T, *T] {
	return func(yield func(x, y *T) bool) {
		for i, j := 0, 0; i < len(a) || j < len(b); {
			var x, y *T
			order := 0
			switch {
			case i == len(a):
				order = 1
			case j == len(b):
				order = -1
			case equal(a[i], b[j]):
				i, j = i+1, j+1
				continue
			default:
				order = compare(a[i], b[j])
			}
			if order <= 0 {
				x, i = &a[i], i+1
			}
			if order >= 0 {
				y, j = &b[j], j+1
			}
			if !yield(x, y) {
				return
			}
		}
	}
}

// Diff returns what is only in the first and only in the second of two lists, which are sorted by compare. An
// element with another value under the same key is in both results. If a list is empty, the result is the other one.
func Diff[T comparable](a, b []T, compare func(a, b T) int) (onlyA, onlyB []T) {
	if len(a) == 0 || len(b) == 0 {
		return a, b
	}
	for x, y := range Merge(a, b, compare, Equal) {
		if x != nil {
			onlyA = append(onlyA, *x)
		}
		if y != nil {
			onlyB = append(onlyB, *y)
		}
	}
	return onlyA, onlyB
}

// Differ is Diff as one list, in order.
func Differ[T comparable](a, b []T, compare func(a, b T) int) (only []T) {
	if Same(a, b) {
		return nil
	}
	for x, y := range Merge(a, b, compare, Equal) {
		if x != nil {
			only = append(only, *x)
		}
		if y != nil {
			only = append(only, *y)
		}
	}
	return only
}
