package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
)

const (
	// ownerInterval is the shortest time between two computations of preferred nodes. One takes
	// some 70 ms of CPU time for 10,000 addresses and 100 nodes, and a storm of changes causes a
	// pass every 20 ms.
	ownerInterval = time.Second
	// DefaultSettleTime is how long a change of a node must last before addresses are balanced over
	// nodes again. It is longer than most restarts of a node.
	DefaultSettleTime = 30 * time.Second
)

// owners writes into each AddressClaim which node should answer for the address by ARP and NDP.
// Speakers fail over at once without it.
type owners struct {
	debouncer debouncer
	// pendingWrites are the claims that were written, but are still unchanged in the snapshot.
	pendingWrites map[*cluster.Claim]string
	// done is the snapshot for which everything was written.
	done *cluster.Snapshot
	at   time.Time // of the last computation
	// due is when writes may be needed although nothing changes; zero for never.
	due time.Time
}

// newOwners returns owners that accept a change of a node after settleTime, 0 for DefaultSettleTime.
func newOwners(settleTime time.Duration) owners {
	return owners{
		debouncer: debouncer{after: cmp.Or(settleTime, DefaultSettleTime)}, pendingWrites: map[*cluster.Claim]string{},
	}
}

// prefer writes the preferred node into claims that name another one, until the time is over.
func (c *controller) prefer(ctx context.Context, snap *cluster.Snapshot, until time.Time) (left bool, errs []error) {
	o := &c.owners
	now := time.Now()
	if !o.wanted(snap, now) {
		return false, nil
	}
	var nodes []election.Node
	nodes, o.due = o.debouncer.take(now, candidates(snap))
	o.at, o.done = now, nil
	list := preferences(snap, nodes, o.named(snap))
	written := make([]bool, len(list))
	left, errs = c.each(ctx, until, len(list), func(i int) error {
		err := c.write(ctx, list[i])
		written[i] = err == nil
		return err
	})
	for i, p := range list {
		if written[i] {
			o.pendingWrites[p.claim] = p.node
		}
	}
	if !left && len(errs) == 0 {
		o.done = snap
	}
	return left, errs
}

// wanted reports whether a computation is due. If not, it sets when it will be.
func (o *owners) wanted(snap *cluster.Snapshot, now time.Time) bool {
	o.due = time.Time{}
	if !snap.L2Ready {
		return false
	}
	if snap == o.done {
		o.due = o.debouncer.due()
		if o.due.IsZero() || o.due.After(now) {
			return false
		}
	}
	if next := o.at.Add(ownerInterval); next.After(now) {
		o.due = next
		return false
	}
	return true
}

// named returns the node that a claim names, pending writes included. It drops the writes that the
// snapshot has.
func (o *owners) named(snap *cluster.Snapshot) func(*cluster.Claim) string {
	awaited := make(map[*cluster.Claim]string, len(o.pendingWrites))
	for claim, node := range o.pendingWrites {
		if snap.Claim(claim.Addr) == claim {
			awaited[claim] = node
		}
	}
	o.pendingWrites = awaited
	return func(c *cluster.Claim) string {
		if node, ok := awaited[c]; ok {
			return node
		}
		return c.Node
	}
}

// write writes the preferred node into a claim. The error is stale if the claim has changed.
func (c *controller) write(ctx context.Context, p preference) error {
	err := stale(c.writer.patchClaim(ctx, p.claim, map[string]any{"node": p.node}))
	c.metrics.wrote("prefer", err)
	if err != nil {
		return fmt.Errorf("node of claim %s: %w", p.claim.Addr, err)
	}
	c.Log.Info("node preferred", "vip", p.claim.Addr, "node", p.node, "before", cmp.Or(p.was, "none"))
	return nil
}

// A preference is the node that a claim should name, but does not.
type preference struct {
	claim     *cluster.Claim
	node, was string
}

// preferences returns the nodes to write into claims, by address, for claims that name another
// node. An address that no node can answer for keeps its node, which may come back.
func preferences(snap *cluster.Snapshot, nodes []election.Node, named func(*cluster.Claim) string) (list []preference) {
	placements, claims := placements(snap, nodes, named)
	for i, node := range election.Balance(placements) {
		if was := placements[i].Preferred; node != "" && node != was {
			list = append(list, preference{claims[i], node, was})
		}
	}
	return list
}

// placements returns the assigned addresses that have a claim and are announced over L2.
func placements(snap *cluster.Snapshot, nodes []election.Node,
	named func(*cluster.Claim) string) (list []election.Placement, claims []*cluster.Claim) {
	e := election.New(nodes)
	for all := snap.Assignments.Slice(); len(all) > 0; {
		n := 1
		for n < len(all) && all[n].Addr == all[0].Addr {
			n++
		}
		same := all[:n]
		all = all[n:]
		claim := snap.Claim(same[0].Addr)
		services := servicesOf(snap, same)
		terms, ok, _ := election.EligibilityOf(snap, snap.OriginOf(same[0]), services)
		if claim == nil || !ok {
			continue
		}
		a := e.Address(same[0].Addr, terms, services, claim)
		list = append(list, election.Placement{Addr: a.Addr, Equal: e.Equals(&a), Preferred: named(claim)})
		claims = append(claims, claim)
	}
	return list, claims
}

// servicesOf returns the Services that hold an address, the oldest first, as in speakers.
func servicesOf(snap *cluster.Snapshot, same []cluster.Assignment) (services []cluster.Service) {
	for _, a := range same {
		if s, exists := snap.Services.Get(a.Service); exists {
			services = append(services, s)
		}
	}
	slices.SortFunc(services, func(a, b cluster.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
	})
	return services
}

// candidates returns the nodes as the API server shows them. A node whose kubelet does not report
// counts as dead while that concerns fewer than half of the nodes: otherwise it is more likely that
// the API server, or the node lifecycle controller, is cut off.
func candidates(snap *cluster.Snapshot) []election.Node {
	unknown := 0
	for _, n := range snap.Nodes {
		if n.ReadyUnknown {
			unknown++
		}
	}
	nodes := make([]election.Node, len(snap.Nodes))
	for i, n := range snap.Nodes {
		s := snap.Speaker(n.Name)
		alive := s != nil && !(n.ReadyUnknown && 2*unknown < len(snap.Nodes))
		nodes[i] = election.Node{Name: n.Name, Labels: n.Labels, Availability: election.AvailabilityOf(n, alive)}
		if s != nil {
			nodes[i].Interfaces = s.Interfaces
		}
	}
	return nodes
}
