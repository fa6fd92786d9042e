package sortedset

import "slices"

// Patch returns a sorted list with the elements under some keys replaced. keys are sorted,
// and the list has at most one element for each; now returns the element of keys[i], and
// false if there is none. If nothing differs, Patch returns list itself, and it compares only
// elements under the keys: most of a long list is copied in whole stretches, or not at all.
func Patch[T, K any](list []T, keys []K, compare func(T, K) int, equal func(a, b T) bool, now func(i int) (T, bool)) []T {
	var out []T
	changed := false
	kept, at := 0, 0 // out has what comes before list[kept]; keys up to now are before list[at]
	for i, k := range keys {
		found := at < len(list) && compare(list[at], k) == 0 // as if all change
		if !found {
			var skip int
			skip, found = slices.BinarySearchFunc(list[at:], k, compare)
			at += skip
		}
		t, there := now(i)
		switch {
		case found && there && equal(list[at], t), !found && !there:
			if found {
				at++
			}
			continue
		case !changed:
			out, changed = make([]T, 0, len(list)+len(keys)-i), true
		}
		out = append(out, list[kept:at]...)
		if there {
			out = append(out, t)
		}
		if found {
			at++
		}
		kept = at
	}
	if !changed {
		return list
	}
	if out = append(out, list[kept:]...); len(out) == 0 {
		return nil
	}
	return out
}

// Differ returns what is in one of two lists and not in the other; both are sorted by compare.
// Elements in both are only compared for equality.
func Differ[T comparable](a, b []T, compare func(a, b T) int) (only []T) {
	if Same(a, b) {
		return nil
	}
	for len(a) > 0 && len(b) > 0 {
		if a[0] == b[0] {
			a, b = a[1:], b[1:]
			continue
		}
		order := compare(a[0], b[0])
		if order <= 0 {
			only, a = append(only, a[0]), a[1:]
		}
		if order >= 0 {
			only, b = append(only, b[0]), b[1:]
		}
	}
	return slices.Concat(only, a, b)
}

// Seek returns the part of a sorted list from a key on, and whether the first element has that key.
// It is fast if the key is one of the first: for keys in order, call it with what it returned last.
func Seek[T, K any](list []T, key K, compare func(T, K) int) (rest []T, found bool) {
	for n := 0; n < 2 && len(list) > 0; n++ {
		if order := compare(list[0], key); order >= 0 {
			return list, order == 0
		}
		list = list[1:]
	}
	i, found := slices.BinarySearchFunc(list, key, compare)
	return list[i:], found
}
