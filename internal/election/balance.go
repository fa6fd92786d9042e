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
	s := newBalancer(placements)
	// Addresses that move anyway make room first; others move only if that is not enough.
	for s.rebalance(&s.loose) || s.rebalance(&s.kept) {
	}
	chosen := make([]string, len(placements))
	for _, l := range []*groups{&s.kept, &s.loose} {
		for p, list := range l.of {
			for _, i := range list {
				chosen[i] = s.names[p.node]
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
	s := &balancer{names: slices.Concat(sets...)}
	slices.Sort(s.names)
	s.names = slices.Compact(s.names)
	hashes := make([]uint64, len(s.names))
	for i, name := range s.names {
		hashes[i] = hashName(name)
	}
	for _, set := range sets {
		s.classes = append(s.classes, s.indexes(set))
	}
	s.load = make([]int, len(s.names))
	s.kept = groups{map[group][]int{}, make([][]int, len(s.names))}
	s.loose = groups{map[group][]int{}, make([][]int, len(s.names))}
	for _, i := range order {
		b := &placements[i]
		if len(b.Equal) == 0 {
			continue
		}
		class := s.classes[classOf[i]]
		if n, ok := slices.BinarySearch(s.names, b.Preferred); ok && slices.Contains(class, n) {
			s.add(&s.kept, group{n, classOf[i]}, i)
		} else {
			s.add(&s.loose, group{highestScore(class, hashes, hashAddr(b.Addr)), classOf[i]}, i)
		}
	}
	return s
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

func (s *balancer) indexes(names []string) []int {
	out := make([]int, len(names))
	for i, name := range names {
		out[i], _ = slices.BinarySearch(s.names, name)
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

func (s *balancer) add(l *groups, p group, placement int) {
	s.load[p.node]++
	l.of[p] = append(l.of[p], placement)
	if classes := l.byNode[p.node]; len(l.of[p]) == 1 {
		at, _ := slices.BinarySearch(classes, p.class)
		l.byNode[p.node] = slices.Insert(classes, at, p.class)
	}
}

// removeLast removes the last placement of a group.
func (s *balancer) removeLast(l *groups, p group) (placement int) {
	s.load[p.node]--
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
func (s *balancer) rebalance(l *groups) (moved bool) {
	order := make([]int, len(s.names))
	for i := range order {
		order[i] = i
	}
	for {
		slices.SortFunc(order, func(a, b int) int { return cmp.Or(s.load[b]-s.load[a], a-b) })
		from, to, ok := s.findMove(l, order)
		if !ok {
			return moved
		}
		s.add(&s.loose, group{to, from.class}, s.removeLast(l, from))
		moved = true
	}
}

// findMove finds the next move: from the first node in order that has too many.
func (s *balancer) findMove(l *groups, order []int) (from group, to int, ok bool) {
	for _, n := range order {
		for _, class := range l.byNode[n] {
			least := s.emptiest(s.classes[class])
			if s.load[n]-s.load[least] >= 2 && (!ok || s.load[least] < s.load[to]) {
				from, to, ok = group{n, class}, least, true
			}
		}
		if ok {
			break
		}
	}
	return from, to, ok
}

func (s *balancer) emptiest(nodes []int) int {
	return slices.MinFunc(nodes, func(a, b int) int { return cmp.Or(s.load[a]-s.load[b], a-b) })
}
