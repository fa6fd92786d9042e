package plan

import (
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// holders says which Services hold which address, by their indexes, and the other way
// round. It is made anew with each Service that comes or goes: so it has few
// allocations, and finds most Services where they were.
type holders struct {
	from []cluster.Assignment
	// services has the index of the Service of each Assignment, less than 0 where there
	// is none. Assignments are sorted by address, so that those of one stand together:
	// those of address i begin at first[i].
	services, first []int
	// addresses has the indexes of the addresses of Services: those of Service i begin
	// at begin[i].
	addresses, begin []int
}

// next is the holders of snap.
func (h holders) next(snap *cluster.Snapshot) holders {
	n := holders{from: snap.Assignments, services: make([]int, len(snap.Assignments)), first: make([]int, 0, len(snap.Assignments)+1)}
	former := h.former()
	for i, a := range snap.Assignments {
		if i == 0 || snap.Assignments[i-1].Addr != a.Addr {
			n.first = append(n.first, i)
		}
		n.services[i] = findNear(snap, a.Service, former(a))
	}
	n.first = append(n.first, len(snap.Assignments))
	n.turn(len(snap.Services))
	return n
}

// former returns a function that says where the Service of an Assignment was, less
// than 0 if it is not known. It is asked for one after the other, in their order.
func (h holders) former() func(cluster.Assignment) int {
	at := 0
	return func(a cluster.Assignment) int {
		for at < len(h.from) && h.from[at].Compare(a) < 0 {
			at++
		}
		if at == len(h.from) || h.from[at].Compare(a) != 0 {
			return -1
		}
		return h.services[at]
	}
}

// findNear finds a Service that was at an index before another one came or went.
func findNear(snap *cluster.Snapshot, name cluster.Name, was int) int {
	for i := max(was-1, 0); was >= 0 && i <= was+1 && i < len(snap.Services); i++ {
		if snap.Services[i].Name == name {
			return i
		}
	}
	return find(snap, name)
}

// turn fills in what addresses each of the Services holds.
func (h *holders) turn(services int) {
	h.begin = make([]int, services+1)
	for _, s := range h.services {
		if s >= 0 {
			h.begin[s+1]++
		}
	}
	for s := range services {
		h.begin[s+1] += h.begin[s]
	}
	h.addresses = make([]int, h.begin[services])
	end := slices.Clone(h.begin)
	for address := range h.count() {
		for _, s := range h.by(address) {
			h.addresses[end[s]] = address
			end[s]++
		}
	}
}

// count is how many addresses there are.
func (h holders) count() int { return max(len(h.first)-1, 0) }

// by are the Services that hold an address.
func (h holders) by(address int) []int {
	by := h.services[h.first[address]:h.first[address+1]]
	if slices.Contains(by, -1) {
		by = slices.DeleteFunc(slices.Clone(by), func(s int) bool { return s < 0 })
	}
	return by
}

// of are the addresses that any of the Services hold, sorted.
func (h holders) of(services []int) (addresses []int) {
	for _, s := range services {
		addresses = append(addresses, h.addresses[h.begin[s]:h.begin[s+1]]...)
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}
