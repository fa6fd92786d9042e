package sortedset

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

type pair struct{ key, value int }

func comparePairs(a, b pair) int { return cmp.Compare(a.key, b.key) }

// randomPairs has up to n pairs with keys below the limit.
func randomPairs(r *rand.Rand, n, limit int) (list []pair) {
	m := map[int]int{}
	for range r.IntN(n + 1) {
		m[r.IntN(limit)] = r.IntN(3)
	}
	for k, v := range m {
		list = append(list, pair{k, v})
	}
	slices.SortFunc(list, comparePairs)
	return list
}

// checkChunks reports chunks that a Set may not have.
func checkChunks[T any](t *testing.T, s Set[T]) {
	t.Helper()
	n := 0
	for _, c := range s.chunks {
		if n += len(c); len(c) == 0 || len(c) > 2*chunkSize {
			t.Fatalf("a chunk of %d elements", len(c))
		}
	}
	if n != s.Len() {
		t.Fatalf("%d elements in chunks, Len is %d", n, s.Len())
	}
}

// Versions of a set equal the same by slices, whatever is patched, and no version changes later.
func TestSetPatched(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		limit := 1 + r.IntN(3000)
		list := randomPairs(r, 2000, limit)
		s := SetOf(list, comparePairs)
		var versions []Set[pair]
		var lists [][]pair
		for range 10 {
			checkChunks(t, s)
			versions, lists = append(versions, s), append(lists, slices.Clone(list))
			keys, now := randomPairs(r, r.IntN(40)*r.IntN(40), limit), map[int]pair{}
			for _, k := range keys {
				if r.IntN(3) > 0 {
					now[k.key] = k
				}
			}
			patch := func(i int) (pair, bool) { p, is := now[keys[i].key]; return p, is }
			list = Patch(list, keys, comparePairs, Equal, patch)
			next := PatchSet(s, keys, comparePairs, Equal, patch)
			if slices.Equal(list, lists[len(lists)-1]) != next.Same(s) {
				t.Fatalf("seed %d: the same version: %t", seed, next.Same(s))
			}
			s = next
		}
		for i, v := range versions {
			if !slices.Equal(v.Slice(), lists[i]) {
				t.Fatalf("seed %d, version %d: %v, want %v", seed, i, v.Slice(), lists[i])
			}
			gone, came := Changes(v, s, comparePairs)
			wantGone, wantCame := MinusFunc(lists[i], list, exactly), MinusFunc(list, lists[i], exactly)
			if !slices.Equal(gone, wantGone) || !slices.Equal(came, wantCame) {
				t.Fatalf("seed %d: gone %v, came %v, want %v and %v", seed, gone, came, wantGone, wantCame)
			}
			if only := Only(v, s, comparePairs); !slices.Equal(only, wantGone) {
				t.Fatalf("seed %d: only %v, want %v", seed, only, wantGone)
			}
			if kept := KeepSet(v, s, comparePairs); kept.Same(v) != slices.Equal(lists[i], list) {
				t.Fatalf("seed %d: kept %t", seed, kept.Same(v))
			}
		}
	}
}

// exactly orders pairs so that another value is another element.
func exactly(a, b pair) int { return cmp.Or(comparePairs(a, b), cmp.Compare(a.value, b.value)) }

func TestSetGet(t *testing.T) {
	byKey := func(p pair, key int) int { return cmp.Compare(p.key, key) }
	for _, size := range []int{0, 1, chunkSize, 2 * chunkSize, 2*chunkSize + 1, 1000} {
		var list []pair // 1, 3, 5 ...
		for i := range size {
			list = append(list, pair{2*i + 1, i})
		}
		s := SetOf(list, comparePairs)
		for key := range 2*size + 2 {
			if p, found := Get(s, key, byKey); found != (key%2 == 1 && key < 2*size) || found && p.value != key/2 {
				t.Errorf("%d of %d: %v, %v", key, size, p, found)
			}
		}
	}
}

// All elements with a key are returned, in whichever chunks they are.
func TestSetGetAll(t *testing.T) {
	byKey := func(p pair, key int) int { return cmp.Compare(p.key, key) }
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		var list []pair
		for range r.IntN(1500) {
			list = append(list, pair{r.IntN(1 + r.IntN(30)), r.IntN(400)})
		}
		s := SetOf(list, exactly)
		for key := -1; key < 32; key++ {
			var want []pair
			for p := range s.All() {
				if p.key == key {
					want = append(want, p)
				}
			}
			if got := GetAll(s, key, byKey); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %d: %v, want %v", seed, key, got, want)
			}
		}
	}
}

// Elements by their place, and those from a key on, equal those of a slice, across chunks.
func TestSetAtAndFrom(t *testing.T) {
	for _, size := range []int{0, 1, 2, chunkSize, 2*chunkSize + 1, 1000} {
		var list []int // 1, 3, 5 ...
		for i := range size {
			list = append(list, 2*i+1)
		}
		s := SetOf(list, cmp.Compare[int])
		for i := range list {
			if s.At(i) != list[i] {
				t.Fatalf("%d of %d: %d, want %d", i, size, s.At(i), list[i])
			}
		}
		for key := range 2*size + 2 {
			at, _ := slices.BinarySearch(list, key)
			if got := slices.Collect(From(s, key, cmp.Compare[int])); !slices.Equal(got, list[at:]) {
				t.Fatalf("from %d of %d elements: %d elements, want %d", key, size, len(got), size-at)
			}
		}
		for range From(s, 0, cmp.Compare[int]) {
			break // what ranges over a part must not panic
		}
	}
}

// A list that the caller changes later does not change the set. The set is in order, and has each key
// once.
func TestSetOf(t *testing.T) {
	for _, size := range []int{1, 1000} {
		var list []pair
		for i := range size {
			list = append(list, pair{size - i, 1}, pair{size - i, 2})
		}
		s := SetOf(list, comparePairs)
		clear(list)
		got := s.Slice()
		for i, p := range got {
			if p != (pair{i + 1, 1}) {
				t.Fatalf("element %d of %d is %v", i, size, p)
			}
		}
		if s.Len() != size || len(got) != size {
			t.Errorf("%d elements, %d in the list: want %d", s.Len(), len(got), size)
		}
	}
}

// One change among many elements copies few of them, and another version costs few comparisons.
func TestSetSharesChunks(t *testing.T) {
	var list []pair
	for i := range 50_000 {
		list = append(list, pair{key: i})
	}
	s := SetOf(list, comparePairs)
	for i := range 1000 {
		s = With(s, []pair{{i * 37, i}}, comparePairs)
	}
	next := With(s, []pair{{30_000, -1}}, comparePairs)
	compared := 0
	gone, came := Changes(s, next, func(a, b pair) int { compared++; return comparePairs(a, b) })
	if len(gone) != 1 || len(came) != 1 || compared > 2*chunkSize {
		t.Errorf("%d gone, %d came, after %d comparisons", len(gone), len(came), compared)
	}
	bytes := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			With(s, []pair{{30_000, -1}}, comparePairs)
		}
	}).AllocedBytesPerOp()
	if copied := int64(len(list) * 16); bytes > copied/20 {
		t.Errorf("one change allocates %d bytes, want less than a twentieth of a copy, which has %d", bytes, copied)
	}
	if gone, came := Changes(s, Without(s, list[100:40_000], comparePairs), comparePairs); len(gone) != 39_900 ||
		len(came) != 0 {
		t.Errorf("%d gone, %d came", len(gone), len(came))
	}
}

// Uncovered equals a search of each address in all prefixes.
func TestUncovered(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		var addrs []netip.Addr
		var prefixes []netip.Prefix
		for range r.IntN(600) {
			addrs = append(addrs, netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)), byte(r.IntN(256))}))
			prefixes = append(prefixes, HostPrefix(addrs[r.IntN(len(addrs))]))
		}
		for range r.IntN(4) {
			p, _ := netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", r.IntN(4), r.IntN(256))).Prefix(22 + r.IntN(10))
			prefixes = append(prefixes, p)
		}
		in := AddrSet(addrs...)
		var want []netip.Addr
		for a := range in.All() {
			if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
				want = append(want, a)
			}
		}
		is := PrefixSet(prefixes...)
		if got := Uncovered(in, is); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
}
