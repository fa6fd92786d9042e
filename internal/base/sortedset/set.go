package sortedset

import (
	"iter"
	"slices"
	"sort"
)

// A Set is a sorted list whose versions share what they have in common. It is never modified.
// [PatchSet] copies only the chunks with a change, and [Changes] skips the chunks that both versions
// have: with 50,000 elements, one change copies 128 to 256 of them and 400 pointers to chunks.
//
// The zero value is empty.
type Set[T any] struct {
	chunks [][]T // none is empty, or longer than 2*chunkSize
	size   int
}

const chunkSize = 128

// SetOf returns the set of a list, which it copies. Of several elements with the same key, the first
// one counts.
func SetOf[T any](list []T, compare func(a, b T) int) Set[T] {
	list = slices.Clone(list)
	if !slices.IsSortedFunc(list, compare) {
		slices.SortStableFunc(list, compare)
	}
	list = slices.CompactFunc(list, func(a, b T) bool { return compare(a, b) == 0 })
	return Set[T]{appendChunks(nil, list), len(list)}
}

// appendChunks appends a sorted list, in parts if it is too long for a chunk. Each part has memory of
// its own: it may be the only one that a version shares.
func appendChunks[T any](chunks [][]T, list []T) [][]T {
	if len(list) == 0 {
		return chunks
	}
	if len(list) <= 2*chunkSize {
		return append(chunks, list)
	}
	for part := range slices.Chunk(list, chunkSize) {
		chunks = append(chunks, slices.Clone(part))
	}
	return chunks
}

// Len is the number of elements.
func (s Set[T]) Len() int { return s.size }

// All returns the elements in order.
func (s Set[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, chunk := range s.chunks {
			for _, t := range chunk {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// At returns the element with i elements before it, and panics if there is none. It counts through
// the chunks: to look at all elements, use [Set.All].
func (s Set[T]) At(i int) T {
	at := 0
	for i >= len(s.chunks[at]) {
		i -= len(s.chunks[at])
		at++
	}
	return s.chunks[at][i]
}

// Slice returns a copy as a list; nil if the set is empty.
func (s Set[T]) Slice() []T { return slices.Concat(s.chunks...) }

// Same reports whether two sets are the same version, without comparing elements. It is false for
// equal sets that were made separately.
func (s Set[T]) Same(o Set[T]) bool { return s.size == o.size && Same(s.chunks, o.chunks) }

// Get returns the element under a key, and false if there is none.
func Get[T, K any](s Set[T], key K, compare func(T, K) int) (t T, found bool) {
	if s.size == 0 {
		return t, false
	}
	chunk := s.chunks[chunkOf(s.chunks, key, compare)]
	i, found := slices.BinarySearchFunc(chunk, key, compare)
	if !found {
		return t, false
	}
	return chunk[i], true
}

// From returns the elements from a key on, in order.
func From[T, K any](s Set[T], key K, compare func(T, K) int) iter.Seq[T] {
	return func(yield func(T) bool) {
		for i, chunk := range s.chunks[chunkOf(s.chunks, key, compare):] {
			first := 0
			if i == 0 {
				first, _ = slices.BinarySearchFunc(chunk, key, compare)
			}
			for _, t := range chunk[first:] {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// GetAll returns the elements under a key, for an order by more than the key: compare orders by the key
// alone.
func GetAll[T, K any](s Set[T], key K, compare func(T, K) int) (all []T) {
	before := sort.Search(len(s.chunks), func(i int) bool { return compare(s.chunks[i][0], key) >= 0 })
	for i := max(0, before-1); i < len(s.chunks); i++ {
		from, found := slices.BinarySearchFunc(s.chunks[i], key, compare)
		if !found && i >= before {
			break
		}
		to := from
		for to < len(s.chunks[i]) && compare(s.chunks[i][to], key) == 0 {
			to++
		}
		if all == nil {
			all = s.chunks[i][from:to:to] // mostly the only ones
		} else {
			all = append(all, s.chunks[i][from:to]...)
		}
	}
	return all
}

// chunkOf returns the index of the chunk that has a key, or would have it; 0 if there is no chunk.
func chunkOf[T, K any](chunks [][]T, key K, compare func(T, K) int) int {
	after := sort.Search(len(chunks), func(i int) bool { return compare(chunks[i][0], key) > 0 })
	return max(0, after-1)
}

// PatchSet is [Patch] of a set. If nothing differs, it returns s itself.
func PatchSet[T, K any](s Set[T], keys []K, compare func(T, K) int, equal func(a, b T) bool,
	now func(i int) (T, bool)) Set[T] {
	var chunks [][]T // what comes before s.chunks[copied], if anything differs
	copied, size := 0, s.size
	for i := 0; i < len(keys); {
		at := copied + chunkOf(s.chunks[copied:], keys[i], compare)
		next := len(keys)
		if at+1 < len(s.chunks) {
			next = i + sort.Search(len(keys)-i, func(j int) bool { return compare(s.chunks[at+1][0], keys[i+j]) <= 0 })
		}
		var chunk []T
		if at < len(s.chunks) {
			chunk = s.chunks[at]
		}
		first := i
		patched := Patch(chunk, keys[first:next], compare, equal, func(j int) (T, bool) { return now(first + j) })
		if !Same(patched, chunk) {
			if chunks == nil {
				chunks = make([][]T, 0, len(s.chunks)+1+len(keys)/chunkSize)
			}
			chunks = appendChunks(append(chunks, s.chunks[copied:at]...), patched)
			copied = min(at+1, len(s.chunks))
			size += len(patched) - len(chunk)
		}
		i = next
	}
	switch {
	case chunks == nil:
		return s
	case size == 0:
		return Set[T]{}
	}
	return Set[T]{append(chunks, s.chunks[copied:]...), size}
}

// With returns a set with the elements of a sorted list, which replace those under the same keys.
func With[T comparable](s Set[T], list []T, compare func(a, b T) int) Set[T] {
	return PatchSet(s, list, compare, Equal, func(i int) (T, bool) { return list[i], true })
}

// Without returns a set without the keys of a sorted list.
func Without[T comparable](s Set[T], list []T, compare func(a, b T) int) Set[T] {
	return PatchSet(s, list, compare, Equal, func(i int) (t T, is bool) { return t, false })
}

// Differences returns in order what is in one version of a set and not in the other, and whether it is
// in the new one. Of an element with another value under the same key, the old value comes first.
func Differences[T comparable](was, now Set[T], compare func(a, b T) int) iter.Seq2[T, bool] {
	return differences(was, now, compare, false)
}

// differences is Differences. With ofWas, it ends with the last element of was.
func differences[T comparable](was, now Set[T], compare func(a, b T) int, ofWas bool) iter.Seq2[T, bool] {
	return func(yield func(T, bool) bool) {
		a, b := cursor[T]{chunks: was.chunks}, cursor[T]{chunks: now.chunks}
		for !a.done() || !b.done() && !ofWas {
			if a.at == 0 && b.at == 0 && !a.done() && !b.done() && Same(a.chunks[0], b.chunks[0]) {
				a.chunks, b.chunks = a.chunks[1:], b.chunks[1:]
				continue
			}
			order := compareCursors(a, b, compare)
			if order == 0 && a.value() == b.value() {
				a.next()
				b.next()
				continue
			}
			if order <= 0 {
				if !yield(a.value(), false) {
					return
				}
				a.next()
			}
			if order >= 0 {
				if !yield(b.value(), true) {
					return
				}
				b.next()
			}
		}
	}
}

// Changes returns the [Differences] as lists: what is only in the old version, and only in the new one.
func Changes[T comparable](was, now Set[T], compare func(a, b T) int) (gone, came []T) {
	if was.Same(now) {
		return nil, nil
	}
	for t, is := range Differences(was, now, compare) {
		if is {
			came = append(came, t)
		} else {
			gone = append(gone, t)
		}
	}
	return gone, came
}

// Only returns what is in a and not in b. It has an element of a whose value in b is another one.
func Only[T comparable](a, b Set[T], compare func(a, b T) int) (only []T) {
	for t, isB := range differences(a, b, compare, true) {
		if !isB {
			only = append(only, t)
		}
	}
	return only
}

// KeepSet returns was if now has the same elements, else now, so that Same detects no change.
func KeepSet[T comparable](was, now Set[T], compare func(a, b T) int) Set[T] {
	if was.size == now.size {
		if gone, came := Changes(was, now, compare); len(gone)+len(came) == 0 {
			return was
		}
	}
	return now
}

// A cursor is a place in a set.
type cursor[T any] struct {
	chunks [][]T // from the place on; empty at the end
	at     int   // in the first of them
}

func (c *cursor[T]) next() {
	if c.at++; c.at == len(c.chunks[0]) {
		c.chunks, c.at = c.chunks[1:], 0
	}
}

func (c *cursor[T]) done() bool { return len(c.chunks) == 0 }

func (c *cursor[T]) value() T { return c.chunks[0][c.at] }

// compareCursors compares the elements at two places. The end comes after all elements.
func compareCursors[T comparable](a, b cursor[T], compare func(a, b T) int) int {
	switch {
	case a.done():
		return 1
	case b.done():
		return -1
	}
	return compare(a.value(), b.value())
}
