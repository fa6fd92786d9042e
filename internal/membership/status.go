package membership

import (
	"fmt"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A MemberStatus is a member for `fanfare status`.
type MemberStatus struct {
	Node string `json:"node"`
	// State is alive, left (its speaker was stopped or restarts), dead, or lease: gossip does
	// not reach it, and it renews its Lease.
	State string    `json:"state"`
	Since time.Time `json:"since"`
}

// A Status is the membership for `fanfare status`.
type Status struct {
	Nodes []MemberStatus `json:"nodes,omitempty"`
	// LeftOut are the nodes whose endpoints get no new connections.
	LeftOut []string `json:"leftOut,omitempty"`
	// Problems are what a user must correct.
	Problems []string `json:"problems,omitempty"`
}

// Summary counts the alive members of all: "2/3"; empty without members.
func (s *Status) Summary() string {
	if s == nil || len(s.Nodes) == 0 {
		return ""
	}
	alive := 0
	for _, m := range s.Nodes {
		if m.State == "alive" || m.State == "lease" {
			alive++
		}
	}
	return fmt.Sprintf("%d/%d", alive, len(s.Nodes))
}

// Status describes m, which may be nil. The Status of a nil Tracker is nil.
func (t *Tracker) Status(m *Members) *Status {
	if t == nil {
		return nil
	}
	s := &Status{Problems: t.gossip.Problems()}
	if n := t.omitted.Load(); n > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf(
			"%d interfaces of this node are unknown to the other nodes, since too many are in subnets of pools: this "+
				"node answers for no address on them; name fewer in spec.interfaces of the L2Advertisements", n))
	}
	if problem := t.leases.problem(); problem != "" {
		s.Problems = append(s.Problems, problem)
	}
	if m == nil {
		return s
	}
	unresponsive := m.Unresponsive(t.gossip.Node)
	for _, n := range m.Nodes {
		s.Nodes = append(s.Nodes, MemberStatus{Node: n.Node, State: n.State(), Since: n.Since})
		if _, out := unresponsive[n.Node]; out {
			s.LeftOut = append(s.LeftOut, n.Node)
		}
	}
	if list := m.LongByLease(time.Now()); len(list) > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf(
			"gossip does not reach nodes %s, which renew their Leases; is port %d open between nodes, UDP and TCP?",
			cluster.Enumerate(namesOf(list)), t.gossip.Port))
	}
	if dead := m.Dead(t.gossip.Node); len(dead) > 0 && len(s.LeftOut) == 0 {
		s.Problems = append(s.Problems, fmt.Sprintf(
			"%s of %d nodes do not respond: half or more, so this node itself may be cut off; their "+
				"endpoints are used as before", cluster.Enumerate(namesOf(dead)), len(m.Nodes)))
	}
	return s
}

func namesOf(list []Member) (names []string) {
	for _, m := range list {
		names = append(names, m.Node)
	}
	return names
}
