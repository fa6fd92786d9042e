package redirect

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
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
	owners map[netip.Addr]*ownership
	// interfaces has what each node reported last. A speaker that starts again does not know
	// nodes whose speakers have crashed.
	interfaces map[string][]cluster.Interface
	revision   uint64 // counts the changes
}

// An ownership has the owners of an address, the last one first.
type ownership struct {
	nodes []string
	held  bool // this node answers for the address
}

// NewHistory returns a node's empty History.
func NewHistory(node string) *History {
	return &History{node: node, owners: map[netip.Addr]*ownership{}, interfaces: map[string][]cluster.Interface{}}
}

// Record records that a node answers for an address. It reports whether that is news, and this
// node was an owner too, so that its redirects change.
func (h *History) Record(a netip.Addr, node string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.record(a, node) && slices.Contains(h.owners[a].nodes, h.node)
}

func (h *History) record(a netip.Addr, node string) (changed bool) {
	known := h.owners[a]
	if known == nil {
		known = &ownership{}
		h.owners[a] = known
	}
	if len(known.nodes) > 0 && known.nodes[0] == node {
		return false
	}
	nodes := moveToFront(known.nodes, node)
	known.nodes = nodes[:min(len(nodes), maxOwners)]
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
	h.record(a, h.node)
	h.owners[a].held = true
}

// End records that this node no longer answers for an address, and which node does; empty: none
// that is known.
func (h *History) End(a netip.Addr, next string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.owners[a]; known != nil {
		known.held = false
	}
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

// Owners returns the owners of each address of which this node and others are or were owners, the
// last one first. Of the addresses of want it is about to be one.
func (h *History) Owners(want sortedset.Set[netip.Addr]) map[netip.Addr][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	owners := make(map[netip.Addr][]string)
	for a, known := range h.owners {
		nodes := known.nodes
		if !known.held && sortedset.HasAddr(want, a) {
			nodes = moveToFront(nodes, h.node)
		}
		if len(nodes) > 1 && slices.Contains(nodes, h.node) {
			owners[a] = nodes
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
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Saved{Owners: map[netip.Addr][]string{}, Interfaces: map[string][]cluster.Interface{}, Redirects: programmed}
	for a, known := range h.owners {
		if !slices.Contains(known.nodes, h.node) {
			continue
		}
		s.Owners[a] = known.nodes
		for _, node := range known.nodes {
			s.Interfaces[node] = h.interfaces[node]
		}
	}
	return s
}

// Restore restores what an earlier process on this node knew.
func (h *History) Restore(s Saved) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a, nodes := range s.Owners {
		if h.owners[a] == nil {
			h.owners[a] = &ownership{}
		}
		h.owners[a].nodes = nodes
	}
	maps.Copy(h.interfaces, s.Interfaces)
	h.revision++
}
