package redirect

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/proxy"
)

// maxOwners is how many owners of an address are remembered: no packet gets to more nodes.
const maxOwners = proxy.MaxRedirects + 1

// A History has the nodes that answered for each address, the last one first. Each of
// them may have connections to it that the others do not know. Its methods may be called from
// several goroutines.
type History struct {
	node string // this node

	mu     sync.Mutex
	owners map[netip.Addr][]string
	held   map[netip.Addr]bool // this node answers for them
	// interfaces has what each node reported last. A speaker that starts again does not know
	// nodes whose speakers have crashed.
	interfaces map[string][]cluster.Interface
	revision   uint64 // counts the changes
}

// NewHistory returns a node's empty History.
func NewHistory(node string) *History {
	return &History{node: node, owners: map[netip.Addr][]string{}, held: map[netip.Addr]bool{}, interfaces: map[string][]cluster.Interface{}}
}

// Record records that a node answers for an address. It reports whether that is news, and this
// node was an owner too, so that its redirects change.
func (h *History) Record(a netip.Addr, node string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.record(a, node) && slices.Contains(h.owners[a], h.node)
}

func (h *History) record(a netip.Addr, node string) (changed bool) {
	list := moveToFront(h.owners[a], node)
	list = list[:min(len(list), maxOwners)]
	if slices.Equal(list, h.owners[a]) {
		return false
	}
	h.owners[a] = list
	h.revision++
	return true
}

func moveToFront(list []string, node string) []string {
	others := slices.DeleteFunc(slices.Clone(list), func(n string) bool { return n == node })
	return append([]string{node}, others...)
}

// Begin records that this node answers for an address from now on.
func (h *History) Begin(a netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[a] = true
	h.record(a, h.node)
}

// End records that this node no longer answers for an address, and which node does; empty: none
// that is known.
func (h *History) End(a netip.Addr, next string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, a)
	if next != "" {
		h.record(a, next)
	}
}

// Forget forgets an address.
func (h *History) Forget(a netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.owners[a]; known {
		delete(h.owners, a)
		h.revision++
	}
}

// RecordInterfaces records the interfaces of members. One that has just started reports none.
func (h *History) RecordInterfaces(m *membership.Members) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range m.Nodes {
		if len(n.Interfaces) > 0 && !reflect.DeepEqual(h.interfaces[n.Node], n.Interfaces) {
			h.interfaces[n.Node] = n.Interfaces
			h.revision++
		}
	}
}

// Owners returns the owners of each address that this node is or was an owner of, the last one
// first. Of the addresses of want it is about to be one.
func (h *History) Owners(want []netip.Addr) map[netip.Addr][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	owners := make(map[netip.Addr][]string, len(want))
	for _, a := range want {
		if list := h.owners[a]; len(list) > 0 && !h.held[a] {
			owners[a] = moveToFront(list, h.node)
		}
	}
	for a, list := range h.owners {
		if owners[a] == nil && slices.Contains(list, h.node) {
			owners[a] = list
		}
	}
	return owners
}

// Revision counts the changes of what Owners and Saved return.
func (h *History) Revision() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revision
}

// interfacesOf returns the interfaces that a node reported last.
func (h *History) interfacesOf(node string) []cluster.Interface {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.interfaces[node]
}

// A Saved is what the next process on a node must know of a History, as far as it concerns
// addresses that the node is or was an owner of.
type Saved struct {
	Owners     map[netip.Addr][]string
	Interfaces map[string][]cluster.Interface
	Redirects  []proxy.Redirect // as they were programmed
}

// Saved returns what the next process on this node must know.
func (h *History) Saved(programmed []proxy.Redirect) Saved {
	s := Saved{Owners: h.Owners(nil), Interfaces: map[string][]cluster.Interface{}, Redirects: programmed}
	for _, owners := range s.Owners {
		for _, node := range owners {
			s.Interfaces[node] = h.interfacesOf(node)
		}
	}
	return s
}

// Restore restores what an earlier process on this node knew.
func (h *History) Restore(s Saved) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.owners, s.Owners)
	maps.Copy(h.interfaces, s.Interfaces)
	h.revision++
}
