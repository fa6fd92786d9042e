package election

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// A world is a random list of placements.
type world []Placement

// randomWorld has up to 40 addresses and up to 7 nodes; if mixed, addresses differ in their
// candidates.
func randomWorld(rnd *rand.Rand, mixed bool) world {
	var nodes []string
	for i := range 1 + rnd.IntN(7) {
		nodes = append(nodes, fmt.Sprintf("n%d", i))
	}
	sets := [][]string{nodes}
	for range rnd.IntN(4) {
		if mixed {
			sets = append(sets, slices.DeleteFunc(slices.Clone(nodes), func(string) bool { return rnd.IntN(2) == 0 }))
		}
	}
	skew := 1 + rnd.IntN(len(nodes)+2) // n7 and above are never candidates
	var w world
	for i := range rnd.IntN(40) {
		b := Placement{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Equal: sets[rnd.IntN(len(sets))]}
		if rnd.IntN(4) > 0 {
			b.Preferred = fmt.Sprintf("n%d", rnd.IntN(skew))
		}
		w = append(w, b)
	}
	return w
}

func loads(chosen []string) map[string]int {
	load := map[string]int{}
	for _, n := range chosen {
		load[n]++
	}
	return load
}

// Each address is on a candidate, and on none that has two more than another one of its
// own. Nodes that can have the same addresses differ by one at most. The result is stable,
// whatever the order of the placements.
func TestBalanceIsEven(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(rnd, true)
		chosen := Balance(w)
		load := loads(chosen)
		for i, b := range w {
			if len(b.Equal) == 0 && chosen[i] == "" {
				continue
			}
			if !slices.Contains(b.Equal, chosen[i]) {
				t.Fatalf("seed %d: %s on %q, want one of %v", seed, b.Addr, chosen[i], b.Equal)
			}
			for _, other := range b.Equal {
				if load[chosen[i]] > load[other]+1 {
					t.Fatalf("seed %d: %s on %s with %d addresses, and %s has %d", seed, b.Addr, chosen[i],
						load[chosen[i]], other, load[other])
				}
			}
		}
		for i := range w {
			w[i].Preferred = chosen[i]
		}
		if again := Balance(w); !slices.Equal(again, chosen) {
			t.Fatalf("seed %d: chosen %v, and then %v", seed, chosen, again)
		}
	}
}

func TestBalanceIgnoresTheOrder(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		w := randomWorld(rnd, true)
		want := map[netip.Addr]string{}
		for i, n := range Balance(w) {
			want[w[i].Addr] = n
		}
		rnd.Shuffle(len(w), func(i, j int) { w[i], w[j] = w[j], w[i] })
		for i := range w {
			w[i].Equal = slices.Clone(w[i].Equal) // the result must not depend on shared slices
		}
		for i, n := range Balance(w) {
			if n != want[w[i].Addr] {
				t.Fatalf("seed %d: %s on %s, and in another order on %s", seed, w[i].Addr, want[w[i].Addr], n)
			}
		}
	}
}

// If all addresses have the same candidates, the fewest possible move: only what a node has
// beyond its even share, and the larger shares go to the nodes that have the most.
func TestBalanceMovesTheFewest(t *testing.T) {
	for seed := range uint64(3000) {
		w := randomWorld(rand.New(rand.NewPCG(seed, 3)), false)
		if len(w) == 0 {
			continue
		}
		moved, kept := 0, make([]int, len(w[0].Equal))
		for i, n := range Balance(w) {
			at, stays := slices.BinarySearch(w[i].Equal, w[i].Preferred)
			if !stays {
				continue
			}
			kept[at]++
			if n != w[i].Preferred {
				moved++
			}
		}
		slices.Sort(kept)
		slices.Reverse(kept)
		share, rest, least := len(w)/len(kept), len(w)%len(kept), 0
		for i, n := range kept {
			if i < rest {
				n--
			}
			least += max(0, n-share)
		}
		if moved != least {
			t.Fatalf("seed %d: %d moved that could have stayed, want %d of %v", seed, moved, least, kept)
		}
	}
}

// A cluster's life: 30 addresses, a node leaves, returns, and one is added.
func TestBalanceOverNodeChanges(t *testing.T) {
	var w world
	for i := range 30 {
		w = append(w, Placement{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})})
	}
	for _, step := range []struct {
		nodes []string
		want  string
		moves int
	}{
		{[]string{"a", "b", "c"}, "map[a:10 b:10 c:10]", 30},
		{[]string{"a", "c"}, "map[a:15 c:15]", 10},
		{[]string{"a", "b", "c"}, "map[a:10 b:10 c:10]", 10},
		{[]string{"a", "b", "c", "d"}, "map[a:7 b:8 c:8 d:7]", 7},
		{[]string{"d"}, "map[d:30]", 23},
		{nil, "map[:30]", 30},
	} {
		moves := 0
		for i := range w {
			w[i].Equal = step.nodes
		}
		chosen := Balance(w)
		for i, n := range chosen {
			if n != w[i].Preferred {
				moves++
			}
			w[i].Preferred = n
		}
		if got := fmt.Sprint(loads(chosen)); got != step.want || moves != step.moves {
			t.Errorf("%v: %s after %d moves, want %s after %d", step.nodes, got, moves, step.want, step.moves)
		}
	}
}

// A new address goes to its owner by hash, unless that node has too many.
func TestBalanceAgreesWithTheHash(t *testing.T) {
	e := New([]Node{{Name: "a", Unknown: true}, {Name: "b", Unknown: true}, {Name: "c", Unknown: true}})
	var w world
	for i := range 300 {
		a := Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Anywhere: true}
		w = append(w, Placement{Addr: a.Addr, Equal: e.Equals(&a)})
	}
	same := 0
	for i, n := range Balance(w) {
		if n == e.owner(&Address{Addr: w[i].Addr, Anywhere: true}) {
			same++
		}
	}
	if same < 270 || same == 300 {
		t.Errorf("%d of 300 stay with the node that answers for them already, want nearly all, and not all, since "+
			"the hash is not even", same)
	}
}

func largeWorld() world {
	var nodes []string
	for i := range 100 {
		nodes = append(nodes, fmt.Sprintf("node-%03d", i))
	}
	var w world
	for i := range 10_000 {
		w = append(w, Placement{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Equal: nodes})
	}
	return w
}

// 10,000 addresses on 100 nodes: the first assignment, after a node was removed, after one
// was added, all on one node, and without a change.
func BenchmarkBalance(b *testing.B) {
	settled := largeWorld()
	for i, n := range Balance(settled) {
		settled[i].Preferred = n
	}
	with := func(nodes []string, preferred func(Placement) string) world {
		w := slices.Clone(settled)
		for i := range w {
			w[i].Preferred, w[i].Equal = preferred(w[i]), nodes
		}
		return w
	}
	nodes, same := settled[0].Equal, func(b Placement) string { return b.Preferred }
	for _, bench := range []struct {
		name string
		w    world
	}{
		{"rest", settled},
		{"first", largeWorld()},
		{"gone", with(nodes[1:], same)},
		{"new", with(append(slices.Clone(nodes), "node-100"), same)},
		{"one", with(nodes, func(Placement) string { return "node-000" })},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				Balance(bench.w)
			}
		})
	}
}
