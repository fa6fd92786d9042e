package membership

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// unheardPatience is for how long a node may live by its Lease alone before somebody
// should look at the network.
const unheardPatience = 15 * time.Second

// Members are the nodes whose speakers this one has heard of, itself among them.
// It is immutable: equal pointers mean that nothing has changed. A nil Members knows of no
// dead node, as without a key.
type Members struct {
	Nodes []Member // sorted by Node
}

// A Member is a node whose speaker has been heard of.
type Member struct {
	Node string
	// Alive says that the node has answered lately, or has been seen to renew its
	// Lease since it stopped to.
	Alive bool
	// ByLease says that it is alive by its Lease alone.
	ByLease bool
	// Absent says of one that is dead that the API server, which takes our renewals, has
	// not seen it renew its Lease, either.
	Absent bool
	// Left says that its speaker has said farewell: it restarts, or is stopped. The
	// node and its pods are as they were, but nobody there answers for an address. Such
	// a member is not Alive, and not dead.
	Left bool
	// Returning says that it is back so lately, by its own word, that others come before it.
	Returning bool
	// Since is when the node became what it is; of a dead one, when it was last heard of.
	Since time.Time
	// Interfaces are those by which the node could answer for addresses, sorted by name.
	Interfaces []Interface
}

// An Interface is one of a member's.
type Interface struct {
	Name string
	MAC  net.HardwareAddr // nil where there is none
	// Prefixes are the networks that the interface has an address in, sorted; behind them
	// stand addresses of its own, as prefixes of one address.
	Prefixes []netip.Prefix
}

// Dead says that a member is neither there nor has it said farewell.
func (m *Member) Dead() bool { return !m.Alive && !m.Left }

// Heard says that a member is there, and not by its Lease alone.
func (m *Member) Heard() bool { return m.Alive && !m.ByLease }

// Find finds a member; ok is false when it was never heard of.
func (m *Members) Find(node string) (found Member, ok bool) {
	if m == nil {
		return Member{}, false
	}
	i, ok := slices.BinarySearchFunc(m.Nodes, node, func(m Member, node string) int { return strings.Compare(m.Node, node) })
	if !ok {
		return Member{}, false
	}
	return m.Nodes[i], true
}

// Silent says of which nodes the endpoints are to be left out, and since when they have
// not been heard of: of the dead ones, as long as they are fewer than half. If more are
// dead, it may as well be this node that is cut off, and what it left out would be the
// rest of the cluster. Between two halves, as in a cluster of two nodes, the API server
// decides: who is absent there as well is cut off, and not we. This node is never dead to
// itself.
func (m *Members) Silent(self string) map[string]time.Time {
	dead := m.Dead(self)
	if len(dead) == 0 || 2*len(dead) > len(m.Nodes) {
		return nil
	}
	halved := m.Halved(self)
	silent := make(map[string]time.Time, len(dead))
	for _, n := range dead {
		if !halved || n.Absent {
			silent[n.Node] = n.Since
		}
	}
	return silent
}

// Halved says that exactly half of the members are dead.
func (m *Members) Halved(self string) bool { return 2*len(m.Dead(self)) == len(m.Nodes) }

// Dead are the members that are neither there nor have said farewell, sorted.
func (m *Members) Dead(self string) (dead []Member) {
	if m == nil {
		return nil
	}
	for _, n := range m.Nodes {
		if n.Dead() && n.Node != self {
			dead = append(dead, n)
		}
	}
	return dead
}

// Alone says that a node knows of others, and none of them is there.
func (m *Members) Alone(self string) bool {
	if m == nil {
		return false
	}
	others := false
	for _, n := range m.Nodes {
		if n.Node != self && n.Alive {
			return false
		}
		others = others || n.Node != self
	}
	return others
}

// State is a member's for people.
func (m *Member) State() string {
	switch {
	case m.ByLease:
		return "lease"
	case m.Alive:
		return "alive"
	case m.Left:
		return "left"
	default:
		return "dead"
	}
}

// Unheard are the nodes that have been alive by their Leases alone for a while.
func (m *Members) Unheard(now time.Time) (names []string) {
	for _, n := range m.Nodes {
		if n.ByLease && now.Sub(n.Since) > unheardPatience {
			names = append(names, n.Node)
		}
	}
	return names
}

// Reporter says whether a node is the one that reports the others in Events: one of all
// members does.
func (m *Members) Reporter(self string) bool {
	i := slices.IndexFunc(m.Nodes, func(n Member) bool { return n.Alive && !n.ByLease })
	return i >= 0 && m.Nodes[i].Node == self
}

// Addresses are a member's own, as far as it has told them: it tells them as prefixes of one
// address.
func (m *Member) Addresses() (own []netip.Addr) {
	for _, i := range m.Interfaces {
		for _, p := range i.Prefixes {
			if p.IsSingleIP() {
				own = append(own, p.Addr())
			}
		}
	}
	return own
}
