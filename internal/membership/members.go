package membership

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// byLeaseTolerance is how long a node may be alive only by its Lease before that is reported as a
// problem of the network.
const byLeaseTolerance = 15 * time.Second

// Members are the nodes whose speakers have been members, including this node. It is
// immutable: equal pointers mean that nothing has changed. Without a key it is nil, and no
// node is known to be dead.
type Members struct {
	Nodes []Member // sorted by Node
}

// A Member is a node whose speaker has been a member.
type Member struct {
	Node string
	// Alive: the node responds, or has renewed its Lease since it stopped responding.
	Alive bool
	// ByLease: it is alive only by its Lease.
	ByLease bool
	// Absent: it is dead, and its Lease is not renewed while this node's is.
	Absent bool
	// Left: its speaker was stopped on purpose, or restarts. The node and its pods are
	// as before, but it answers for no address. Such a member is neither alive nor dead.
	Left bool
	// Returning: it reports that it is in its hold-down; other nodes are preferred.
	Returning bool
	// Since is when this state began; for a dead node, when it last responded.
	Since time.Time
	// Interfaces are those on which the node can answer for addresses, sorted by name. Behind
	// its subnets, an interface may have its own addresses, as prefixes of one address.
	Interfaces []cluster.Interface
}

// Dead reports whether a member stopped responding without leaving.
func (m *Member) Dead() bool { return !m.Alive && !m.Left }

// Reachable reports whether gossip reaches a member.
func (m *Member) Reachable() bool { return m.Alive && !m.ByLease }

// Find returns a member.
func (m *Members) Find(node string) (found Member, ok bool) {
	if m == nil {
		return Member{}, false
	}
	i, ok := slices.BinarySearchFunc(m.Nodes, node,
		func(m Member, node string) int { return strings.Compare(m.Node, node) })
	if !ok {
		return Member{}, false
	}
	return m.Nodes[i], true
}

// Unresponsive returns the nodes whose endpoints are left out, and since when they have not
// responded: the dead nodes while they are fewer than half. If more are dead, this node itself may
// be cut off, and would leave out the rest of the cluster. Between two halves, as in a cluster of
// two nodes, the API server decides: nodes that are also absent there are cut off, and not this
// one. This node itself is never among them.
func (m *Members) Unresponsive(self string) map[string]time.Time {
	dead := m.Dead(self)
	if len(dead) == 0 || 2*len(dead) > len(m.Nodes) {
		return nil
	}
	halved := m.Halved(self)
	unresponsive := make(map[string]time.Time, len(dead))
	for _, n := range dead {
		if !halved || n.Absent {
			unresponsive[n.Node] = n.Since
		}
	}
	return unresponsive
}

// where returns the members that a function selects, sorted; none for nil.
func (m *Members) where(selected func(n *Member) bool) (found []Member) {
	if m == nil {
		return nil
	}
	for i := range m.Nodes {
		if selected(&m.Nodes[i]) {
			found = append(found, m.Nodes[i])
		}
	}
	return found
}

// CountAlive returns the number of members that are alive; 0 for nil.
func (m *Members) CountAlive() int { return len(m.where(func(n *Member) bool { return n.Alive })) }

// Halved reports whether exactly half of the members are dead.
func (m *Members) Halved(self string) bool { return 2*len(m.Dead(self)) == len(m.Nodes) }

// Dead returns the dead members except self, sorted.
func (m *Members) Dead(self string) []Member {
	return m.where(func(n *Member) bool { return n.Dead() && n.Node != self })
}

// Alone reports whether there are other members, and none is alive.
func (m *Members) Alone(self string) bool {
	others := m.where(func(n *Member) bool { return n.Node != self })
	return len(others) > 0 && !slices.ContainsFunc(others, func(n Member) bool { return n.Alive })
}

// State returns the state for `fanfare status`.
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

// LongByLease returns the members that have been alive only by their Leases for a while.
func (m *Members) LongByLease(now time.Time) []Member {
	return m.where(func(n *Member) bool { return n.ByLease && now.Sub(n.Since) > byLeaseTolerance })
}

// Reporter reports whether a node writes the Events about other nodes: only one member does.
func (m *Members) Reporter(self string) bool {
	i := slices.IndexFunc(m.Nodes, func(n Member) bool { return n.Alive && !n.ByLease })
	return i >= 0 && m.Nodes[i].Node == self
}

// Addresses returns a member's own addresses: the prefixes of one address.
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

// unreachableNodes returns the names of dead nodes and, where addresses may be announced over
// Layer 2, of nodes that were never members and may answer for addresses.
func unreachableNodes(v *gossip.View, snap *cluster.Snapshot, self string) (names []string) {
	known := map[string]bool{self: true}
	for _, m := range v.Members {
		known[m.Node] = true
		if m.State == gossip.Dead {
			names = append(names, m.Node)
		}
	}
	if len(v.Members) == 0 || !snap.UsesL2() {
		return names
	}
	for _, n := range snap.Nodes {
		if !known[n.Name] && !n.Excluded {
			names = append(names, n.Name)
		}
	}
	return names
}

// membersOf combines gossip and Leases. A node that is dead in gossip is alive if it has renewed
// its Lease since then, less than validity ago; the metadata of that Lease is newer than that of
// gossip. Without members in gossip the result is nil.
func membersOf(v *gossip.View, leases map[string]leaseState, validity time.Duration, now time.Time) *Members {
	if len(v.Members) == 0 {
		return nil
	}
	renewed := func(s leaseState, since time.Time) bool {
		return s.renewed.After(since) && now.Sub(s.renewed) < validity
	}
	all, others := &Members{}, maps.Clone(leases)
	for _, m := range v.Members {
		delete(others, m.Node)
		lease := leases[m.Node]
		one := Member{Node: m.Node, Alive: m.State == gossip.Alive, Left: m.State == gossip.Left, Since: m.Since}
		meta := m.Meta
		switch {
		case m.State != gossip.Dead:
		case !renewed(lease, m.Since):
			one.Absent = lease.absent
		default:
			one.Alive, one.ByLease = true, true
			if lease.record.meta != nil {
				meta = lease.record.meta
			}
		}
		// Metadata of an unknown release counts as no interfaces: that node answers for nothing.
		one.Interfaces, _ = DecodeInterfaces(meta)
		one.Returning = isReturning(meta)
		all.Nodes = append(all.Nodes, one)
	}
	for name, lease := range others {
		if !renewed(lease, time.Time{}) {
			continue // most likely it runs no speaker
		}
		one := Member{Node: name, Alive: true, ByLease: true, Since: lease.since}
		one.Interfaces, _ = DecodeInterfaces(lease.record.meta)
		one.Returning = isReturning(lease.record.meta)
		all.Nodes = append(all.Nodes, one)
	}
	slices.SortFunc(all.Nodes, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	return all
}
