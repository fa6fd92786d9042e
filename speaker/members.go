package speaker

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Members are the nodes whose speakers this one has heard of, itself among them.
// It is immutable: who compares pointers knows whether anything has changed. With a
// nil Members nobody is known to be dead, as without a key.
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

// dead says that a member is neither there nor has it said farewell.
func (m *Member) dead() bool { return !m.Alive && !m.Left }

// heard says that a member is there, and not by its Lease alone.
func (m *Member) heard() bool { return m.Alive && !m.ByLease }

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

// silent says of which nodes the endpoints are to be left out, and since when they have
// not been heard of: of the dead ones, as long as they are fewer than half. If more are
// dead, it may as well be this node that is cut off, and what it left out would be the
// rest of the cluster. Between two halves, as in a cluster of two nodes, the API server
// decides: who is absent there as well is cut off, and not we. This node is never dead to
// itself.
func (m *Members) silent(self string) map[string]time.Time {
	dead := m.dead(self)
	if len(dead) == 0 || 2*len(dead) > len(m.Nodes) {
		return nil
	}
	halved := m.halved(self)
	silent := make(map[string]time.Time, len(dead))
	for _, n := range dead {
		if !halved || n.Absent {
			silent[n.Node] = n.Since
		}
	}
	return silent
}

// halved says that exactly half of the members are dead.
func (m *Members) halved(self string) bool { return 2*len(m.dead(self)) == len(m.Nodes) }

// dead are the members that are neither there nor have said farewell, sorted.
func (m *Members) dead(self string) (dead []Member) {
	if m == nil {
		return nil
	}
	for _, n := range m.Nodes {
		if n.dead() && n.Node != self {
			dead = append(dead, n)
		}
	}
	return dead
}

// alone says that a node knows of others, and none of them is there.
func (m *Members) alone(self string) bool {
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

// usable are the endpoints of a port that may be given new flows. Those on nodes that
// are silent are left out, unless nothing is left without them: such a node may live
// after all, and nobody is helped by being sent nowhere. Missed says so, in words that
// end a sentence.
func (v *view) usable(all []cluster.Endpoint, notReady bool) (use []cluster.Endpoint, missed string) {
	use = usable(all, notReady)
	if len(v.silent) == 0 {
		return use, ""
	}
	there := func(e *cluster.Endpoint) bool { return !v.isSilent(e.Node) }
	out := filter(use, func(e *cluster.Endpoint) bool { return !there(e) })
	if len(out) == 0 {
		return use, ""
	}
	if rest := usable(filter(all, there), notReady); len(rest) > 0 {
		return rest, v.silence(out) + "; what is there is left out"
	}
	return use, v.silence(out) + "; what is there is used all the same, since there is nothing else"
}

func (v *view) isSilent(node string) bool {
	_, silent := v.silent[node]
	return silent
}

// silence says since when nothing has been heard of the nodes of endpoints.
func (v *view) silence(of []cluster.Endpoint) string {
	var names []string
	for _, e := range of {
		names = append(names, fmt.Sprintf("node %s has not been heard of since %s", e.Node, v.silent[e.Node].UTC().Format(time.RFC3339)))
	}
	slices.Sort(names)
	return enumerate(slices.Compact(names))
}
