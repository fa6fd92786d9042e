package sortedset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A pair with another value under the same key is on both sides, the old one first.
func TestMerge(t *testing.T) {
	one, two, other := pair{1, 0}, pair{2, 0}, pair{2, 9}
	for _, row := range []struct {
		a, b, onlyA, onlyB, differ []pair
	}{
		{},
		{a: []pair{one, two}, b: []pair{one, two}},
		{a: []pair{one}, onlyA: []pair{one}, differ: []pair{one}},
		{b: []pair{one}, onlyB: []pair{one}, differ: []pair{one}},
		{[]pair{one}, []pair{two}, []pair{one}, []pair{two}, []pair{one, two}},
		{[]pair{two}, []pair{one}, []pair{two}, []pair{one}, []pair{one, two}},
		{[]pair{one, two}, []pair{other}, []pair{one, two}, []pair{other}, []pair{one, two, other}},
	} {
		onlyA, onlyB := Diff(row.a, row.b, comparePairs)
		differ := Differ(row.a, row.b, comparePairs)
		if !slices.Equal(onlyA, row.onlyA) || !slices.Equal(onlyB, row.onlyB) || !slices.Equal(differ, row.differ) {
			t.Errorf("%+v: only in a %v, only in b %v, together %v", row, onlyA, onlyB, differ)
		}
	}
}

// Merge equals a look at every key.
func TestMergeRandom(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		lists := [2][]pair{}
		want := ""
		for key := range 12 {
			var at [2]*pair
			for i := range lists {
				if r.IntN(3) > 0 {
					at[i] = &pair{key, r.IntN(3) / 2}
					lists[i] = append(lists[i], *at[i])
				}
			}
			if at[0] != at[1] && (at[0] == nil || at[1] == nil || *at[0] != *at[1]) {
				want += text(at[0], at[1])
			}
		}
		got := ""
		for x, y := range Merge(lists[0], lists[1], comparePairs, Equal) {
			got += text(x, y)
		}
		if got != want {
			t.Fatalf("seed %d: %v and %v: %s, want %s", seed, lists[0], lists[1], got, want)
		}
		for range Merge(lists[0], lists[1], comparePairs, Equal) {
			break // a caller that stops must not panic
		}
	}
}

func text(x, y *pair) (s string) {
	for _, p := range []*pair{x, y} {
		if p == nil {
			s += "- "
		} else {
			s += fmt.Sprint(*p, " ")
		}
	}
	return s
}
