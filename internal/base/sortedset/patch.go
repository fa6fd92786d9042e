package sortedset

import "slices"

// Patch returns a sorted list with the elements under some keys replaced. keys are sorted,
// and the list has at most one element for each; now returns the element of keys[i], and
// false if there is none. If nothing differs, Patch returns list itself, and it compares only
// elements under the keys: most of a long list is copied in whole stretches, or not at all. If only
// the first elements go, it returns the rest of the list, without a copy.
func Patch[T, K any](list []T, keys []K, compare func(T, K) int, equal func(a, b T) bool,
	now func(i int) (T, bool)) []T {
	var out []T
	kept, at := 0, 0 // out has what comes before list[kept]; keys up to now are before list[at]
	for i, k := range keys {
		rest, found := Seek(list[at:], k, compare)
		at = len(list) - len(rest)
		t, there := now(i)
		if found && there && equal(list[at], t) || !found && !there {
			if found {
				at++
			}
			continue
		}
		if out == nil && (there || at > kept) {
			out = make([]T, 0, len(list)-kept+len(keys)-i)
		}
		if out != nil {
			out = append(out, list[kept:at]...)
		}
		if there {
			out = append(out, t)
		}
		if found {
			at++
		}
		kept = at
	}
	if out == nil {
		out = slices.Clip(list[kept:])
	} else {
		out = append(out, list[kept:]...)
	}
	if len(out) == 0 && len(list) > 0 {
		return nil
	}
	return out
}

// Seek returns the part of a sorted list from a key on, and whether the first element has that key.
// It is fast if the key is near the beginning: for keys in order, call it with what it returned last.
func Seek[T, K any](list []T, key K, compare func(T, K) int) (rest []T, found bool) {
	from, to := 0, 1 // what is before list[from] is less than key
	for ; to <= len(list); from, to = to, 2*to {
		if order := compare(list[to-1], key); order == 0 {
			return list[to-1:], true
		} else if order > 0 {
			break
		}
	}
	i, found := slices.BinarySearchFunc(list[from:min(to, len(list))], key, compare)
	return list[from+i:], found
}
