package sortedset

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// Patch equals the same by a map, and returns the list itself if nothing differs.
func TestPatch(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		random := func() map[int]int {
			m := map[int]int{}
			for range r.IntN(8) {
				m[r.IntN(10)] = r.IntN(2)
			}
			return m
		}
		sorted := func(m map[int]int) (list []pair) {
			for k, v := range m {
				list = append(list, pair{k, v})
			}
			slices.SortFunc(list, func(a, b pair) int { return cmp.Compare(a.key, b.key) })
			return list
		}
		want, now := random(), random()
		list := sorted(want)
		before := slices.Clone(list)
		var keys []int
		for k := range 10 {
			if r.IntN(2) == 0 {
				continue
			}
			keys = append(keys, k)
			if delete(want, k); now[k] != 0 {
				want[k] = now[k]
			}
		}
		got := Patch(list, keys, func(p pair, k int) int {
			return cmp.Compare(p.key, k)
		}, func(a, b pair) bool { return a == b },
			func(i int) (pair, bool) { return pair{keys[i], now[keys[i]]}, now[keys[i]] != 0 })
		if !slices.Equal(got, sorted(want)) {
			t.Fatalf("seed %d: %v with %v of %v = %v, want %v", seed, before, keys, now, got, sorted(want))
		}
		if !slices.Equal(list, before) || slices.Equal(got, before) && !Same(got, list) {
			t.Fatalf("seed %d: the list was written to, or copied without need", seed)
		}
	}
}

func TestSeek(t *testing.T) {
	for size := range 20 {
		var list []int // 1, 3, 5 ...
		for i := range size {
			list = append(list, 2*i+1)
		}
		for key := range 2*size + 2 {
			at, has := slices.BinarySearch(list, key)
			if rest, found := Seek(list, key, cmp.Compare[int]); found != has || !slices.Equal(rest, list[at:]) {
				t.Errorf("%d in %v: %v, %v", key, list, rest, found)
			}
		}
	}
}
