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
func (o *History) Record(a netip.Addr, node string) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.record(a, node) && slices.Contains(o.owners[a], o.node)
}

func (o *History) record(a netip.Addr, node string) (changed bool) {
	list := moveToFront(o.owners[a], node)
	list = list[:min(len(list), maxOwners)]
	if slices.Equal(list, o.owners[a]) {
		return false
	}
	o.owners[a] = list
	o.revision++
	return true
}

func moveToFront(list []string, node string) []string {
	others := slices.DeleteFunc(slices.Clone(list), func(n string) bool { return n == node })
	return append([]string{node}, others...)
}

// Begin records that this node answers for an address from now on.
func (o *History) Begin(a netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held[a] = true
	o.record(a, o.node)
}

// End records that this node no longer answers for an address, and which node does; empty: none
// that is known.
func (o *History) End(a netip.Addr, next string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.held, a)
	if next != "" {
		o.record(a, next)
	}
}

// Forget forgets an address.
func (o *History) Forget(a netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.owners[a]; known {
		delete(o.owners, a)
		o.revision++
	}
}

// RecordInterfaces records the interfaces of members. One that has just started reports none.
func (o *History) RecordInterfaces(m *membership.Members) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range m.Nodes {
		if len(n.Interfaces) > 0 && !reflect.DeepEqual(o.interfaces[n.Node], n.Interfaces) {
			o.interfaces[n.Node] = n.Interfaces
			o.revision++
		}
	}
}

// Owners returns the owners of each address that this node is or was an owner of, the last one
// first. Of the addresses of want it is about to be one.
func (o *History) Owners(want []netip.Addr) map[netip.Addr][]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	owners := make(map[netip.Addr][]string, len(want))
	for _, a := range want {
		if list := o.owners[a]; len(list) > 0 && !o.held[a] {
			owners[a] = moveToFront(list, o.node)
		}
	}
	for a, list := range o.owners {
		if owners[a] == nil && slices.Contains(list, o.node) {
			owners[a] = list
		}
	}
	return owners
}

// Revision counts the changes of what Owners and Saved return.
func (o *History) Revision() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.revision
}

// interfacesOf returns the interfaces that a node reported last.
func (o *History) interfacesOf(node string) []cluster.Interface {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.interfaces[node]
}

// A Saved is what the next process on a node must know of a History, as far as it concerns
// addresses that the node is or was an owner of.
type Saved struct {
	Owners     map[netip.Addr][]string
	Interfaces map[string][]cluster.Interface
	Redirects  []proxy.Redirect // as they were programmed
}

// Saved returns what the next process on this node must know.
func (o *History) Saved(programmed []proxy.Redirect) Saved {
	s := Saved{Owners: o.Owners(nil), Interfaces: map[string][]cluster.Interface{}, Redirects: programmed}
	for _, owners := range s.Owners {
		for _, node := range owners {
			s.Interfaces[node] = o.interfacesOf(node)
		}
	}
	return s
}

// Restore restores what an earlier process on this node knew.
func (o *History) Restore(s Saved) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.Copy(o.owners, s.Owners)
	maps.Copy(o.interfaces, s.Interfaces)
	o.revision++
}
