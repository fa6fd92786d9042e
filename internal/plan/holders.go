package plan

import (
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// holders is an index of the Services that hold an address, and of the addresses that a Service
// holds, both by their indexes. It is rebuilt whenever a Service is created or deleted, so it
// has few allocations and finds most Services near their last index.
type holders struct {
	assignments []cluster.Assignment
	// services has the index of the Service of each Assignment, -1 if it is missing.
	// Assignments are sorted by address; those of address i begin at first[i].
	services, first []int
	// addresses has the indexes of addresses; those of Service i begin at begin[i].
	addresses, begin []int
}

// next returns the holders of snap.
func (h holders) next(snap *cluster.Snapshot) holders {
	n := holders{assignments: snap.Assignments, services: make([]int, len(snap.Assignments)), first: make([]int, 0, len(snap.Assignments)+1)}
	previous := h.previous()
	for i, a := range snap.Assignments {
		if i == 0 || snap.Assignments[i-1].Addr != a.Addr {
			n.first = append(n.first, i)
		}
		n.services[i] = findNear(snap, a.Service, previous(a))
	}
	n.first = append(n.first, len(snap.Assignments))
	n.indexAddresses(len(snap.Services))
	return n
}

// previous returns a function that returns the last index of an Assignment's Service, or -1. It
// must be called with Assignments in their order.
func (h holders) previous() func(cluster.Assignment) int {
	at := 0
	return func(a cluster.Assignment) int {
		for at < len(h.assignments) && h.assignments[at].Compare(a) < 0 {
			at++
		}
		if at == len(h.assignments) || h.assignments[at].Compare(a) != 0 {
			return -1
		}
		return h.services[at]
	}
}

// findNear finds a Service near its last index.
func findNear(snap *cluster.Snapshot, name cluster.Name, was int) int {
	for i := max(was-1, 0); was >= 0 && i <= was+1 && i < len(snap.Services); i++ {
		if snap.Services[i].Name == name {
			return i
		}
	}
	return find(snap, name)
}

// indexAddresses fills in the addresses of each Service.
func (h *holders) indexAddresses(services int) {
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
		for _, s := range h.servicesOf(address) {
			h.addresses[end[s]] = address
			end[s]++
		}
	}
}

// count is the number of addresses.
func (h holders) count() int { return max(len(h.first)-1, 0) }

// servicesOf returns the Services that hold an address.
func (h holders) servicesOf(address int) []int {
	by := h.services[h.first[address]:h.first[address+1]]
	if slices.Contains(by, -1) {
		by = slices.DeleteFunc(slices.Clone(by), func(s int) bool { return s < 0 })
	}
	return by
}

// addressesOf returns the addresses that any of the Services holds, sorted.
func (h holders) addressesOf(services []int) (addresses []int) {
	for _, s := range services {
		addresses = append(addresses, h.addresses[h.begin[s]:h.begin[s+1]]...)
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}
