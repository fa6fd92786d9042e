package election

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// A Placement is an address that needs a preferred node.
type Placement struct {
	Addr netip.Addr
	// Equal are the candidates that are equal but for the hash, sorted:
	// [Candidates.Equals]. Placements may share the slice.
	Equal []string
	// Preferred is the node preferred before, empty for none.
	Preferred string
}

// Balance returns the node to prefer for each placement, empty where there is none.
//
// No address is on a node that has two more than another of its equal candidates; so nodes
// that can have the same addresses differ by one at most. As few addresses move as
// possible: if all addresses have the same candidates, only those whose node is no longer a
// candidate, and the surplus of nodes that have too many. An address that must move goes to
// its owner by hash if possible, because that node already answers for it.
//
// The result depends on the placements alone, not on their order.
func Balance(placements []Placement) []string {
	b := newBalancer(placements)
	// Addresses that move anyway make room first; others move only if that is not enough.
	for b.rebalance(&b.loose) || b.rebalance(&b.kept) {
	}
	chosen := make([]string, len(placements))
	for _, l := range []*groups{&b.kept, &b.loose} {
		for p, list := range l.of {
			for _, i := range list {
				chosen[i] = b.names[p.node]
			}
		}
	}
	return chosen
}

// A balancer assigns addresses to nodes, as Balance reports it.
type balancer struct {
	names []string // of the nodes, sorted
	load  []int    // how many addresses each has
	// classes are the sets of nodes that are candidates for addresses.
	classes [][]int
	// kept are addresses on their previous node, loose those on a node chosen here.
	kept, loose groups
}

// A group is the addresses of one class on one node.
type group struct{ node, class int }

// groups has the placements of each group, as indexes sorted by address.
type groups struct {
	of     map[group][]int
	byNode [][]int // the classes of each node's groups, sorted
}

func newBalancer(placements []Placement) *balancer {
	order := byAddr(placements)
	sets, classOf := classify(placements, order)
	b := &balancer{names: slices.Concat(sets...)}
	slices.Sort(b.names)
	b.names = slices.Compact(b.names)
	hashes := make([]uint64, len(b.names))
	for i, name := range b.names {
		hashes[i] = hashName(name)
	}
	for _, set := range sets {
		b.classes = append(b.classes, b.indexes(set))
	}
	b.load = make([]int, len(b.names))
	b.kept = groups{map[group][]int{}, make([][]int, len(b.names))}
	b.loose = groups{map[group][]int{}, make([][]int, len(b.names))}
	for _, i := range order {
		p := &placements[i]
		if len(p.Equal) == 0 {
			continue
		}
		class := b.classes[classOf[i]]
		if n, ok := slices.BinarySearch(b.names, p.Preferred); ok && slices.Contains(class, n) {
			b.add(&b.kept, group{n, classOf[i]}, i)
		} else {
			b.add(&b.loose, group{highestScore(class, hashes, hashAddr(p.Addr)), classOf[i]}, i)
		}
	}
	return b
}

// classify returns the distinct sets of nodes in order, and the set of each placement. Placements
// that share a slice are not compared name by name: 10,000 times 100 names are a million.
func classify(placements []Placement, order []int) (sets [][]string, of []int) {
	type array struct {
		first *string
		n     int
	}
	arrays, texts := map[array]int{}, map[string]int{}
	of = make([]int, len(placements))
	for _, i := range order {
		b := &placements[i]
		if len(b.Equal) == 0 {
			continue
		}
		a := array{&b.Equal[0], len(b.Equal)}
		class, ok := arrays[a]
		if !ok {
			text := strings.Join(b.Equal, " ")
			if class, ok = texts[text]; !ok {
				class = len(sets)
				sets = append(sets, b.Equal)
				texts[text] = class
			}
			arrays[a] = class
		}
		of[i] = class
	}
	return sets, of
}

func (b *balancer) indexes(names []string) []int {
	out := make([]int, len(names))
	for i, name := range names {
		out[i], _ = slices.BinarySearch(b.names, name)
	}
	return out
}

// byAddr returns the indexes of placements in the order of their addresses.
func byAddr(placements []Placement) []int {
	order := make([]int, len(placements))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return placements[i].Addr.Compare(placements[j].Addr) })
	return order
}

// highestScore returns the node with the highest score for an address.
func highestScore(nodes []int, hashes []uint64, addr uint64) int {
	best := nodes[0]
	for _, n := range nodes[1:] {
		if score(addr, hashes[n]) > score(addr, hashes[best]) {
			best = n
		}
	}
	return best
}

func (b *balancer) add(l *groups, p group, placement int) {
	b.load[p.node]++
	l.of[p] = append(l.of[p], placement)
	if classes := l.byNode[p.node]; len(l.of[p]) == 1 {
		at, _ := slices.BinarySearch(classes, p.class)
		l.byNode[p.node] = slices.Insert(classes, at, p.class)
	}
}

// removeLast removes the last placement of a group.
func (b *balancer) removeLast(l *groups, p group) (placement int) {
	b.load[p.node]--
	list := l.of[p]
	last := len(list) - 1
	if placement, l.of[p] = list[last], list[:last]; last == 0 {
		classes := l.byNode[p.node]
		at, _ := slices.BinarySearch(classes, p.class)
		delete(l.of, p)
		l.byNode[p.node] = slices.Delete(classes, at, at+1)
	}
	return placement
}

// rebalance moves addresses of l to the emptiest candidate from nodes that have at least
// two more, the fullest first, until there is none. It reports whether any moved. A moved
// address is loose from then on: moving it again costs nothing more.
func (b *balancer) rebalance(l *groups) (moved bool) {
	order := make([]int, len(b.names))
	for i := range order {
		order[i] = i
	}
	for {
		slices.SortFunc(order, func(m, n int) int { return cmp.Or(b.load[n]-b.load[m], m-n) })
		from, to, ok := b.findMove(l, order)
		if !ok {
			return moved
		}
		b.add(&b.loose, group{to, from.class}, b.removeLast(l, from))
		moved = true
	}
}

// findMove finds the next move: from the first node in order that has too many.
func (b *balancer) findMove(l *groups, order []int) (from group, to int, ok bool) {
	for _, n := range order {
		for _, class := range l.byNode[n] {
			least := b.emptiest(b.classes[class])
			if b.load[n]-b.load[least] >= 2 && (!ok || b.load[least] < b.load[to]) {
				from, to, ok = group{n, class}, least, true
			}
		}
		if ok {
			break
		}
	}
	return from, to, ok
}

func (b *balancer) emptiest(nodes []int) int {
	return slices.MinFunc(nodes, func(m, n int) int { return cmp.Or(b.load[m]-b.load[n], m-n) })
}
