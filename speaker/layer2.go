package speaker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/kernel/neighbour"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/redirect"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// discoveryTime is how long a new speaker waits to receive the state of others. Without
// the wait, it would assume that it is alone and answer for all addresses.
const discoveryTime = 2 * time.Second

// queryInterval is the time between queries to a node whose state has not arrived: packets
// get lost, in particular on a link that has just come up.
const queryInterval = 200 * time.Millisecond

// problemInterval is the time between two checks for kernel settings that block L2 traffic.
const problemInterval = time.Minute

// suspendThreshold is a delay that no load explains.
const suspendThreshold = 2 * time.Second

// layer2 is the speaker's part for L2. It belongs to the goroutine of Run.
type layer2 struct {
	announcer    *l2.Announcer
	path         *announcePath
	handover     *handoverState
	broadcast    func([]byte)                 // to all other speakers
	send         func(node string, b []byte)  // to one of them
	clustered    bool                         // speakers communicate
	offer        *interfaceOffer              // of the last pass
	members      *membership.Members          // that handover knows
	assigned     sortedset.Set[*plan.Address] // that handover knows
	holdDown     membership.HoldDown          // of this node
	querying     bool                         // the state of a node is missing
	queriedAt    time.Time
	redirects    *redirect.Redirects // of the last pass
	neighbours   *neighbour.Watch
	discoveryEnd time.Time      // of the wait for other nodes; zero before the first pass
	interfaces   []l2.Interface // of the offer of the last pass
	rejoinedAt   time.Time      // when the last new one appeared, or this process continued
	checkedAt    time.Time      // when problems were last checked
	problems     []l2.Problem
	asymmetric   []l2.AsymmetricPath
}

// newLayer2 restores the state of the previous speaker, and opens nothing.
func newLayer2(o Options, adopted []netip.Addr, state *rundir.Dir) *layer2 {
	saved, err := state.LoadAnswered()
	deaths, noDeaths := state.LoadFailures()
	owners, noOwners := state.LoadOwners()
	if err := errors.Join(err, noDeaths, noOwners); err != nil {
		o.Log.Warn("L2 state not restored", "err", err)
	}
	var known []netip.Addr
	crashed := false
	for _, p := range saved {
		known = append(known, p.Addr)
		crashed = crashed || p.Until.IsZero()
	}
	l := &layer2{
		announcer: l2.New(l2.Options{Logger: o.Log, Registerer: o.Registry, Refresh: o.RefreshL2}),
		handover:  newHandoverState(o.Node, known),
	}
	l.holdDown = membership.NewHoldDown(deaths, crashed)
	l.handover.restoreOwners(owners)
	l.redirects, l.neighbours = &redirect.Redirects{Rules: owners.Redirects}, neighbour.New(o.Log)
	l.path = newL2Path(&l2Announcer{set: l.announcer.Set, handover: l.handover}, o.LingerL2)
	l.path.keeps = l.handover.keepsOf
	for _, p := range saved {
		if !slices.Contains(adopted, p.Addr) {
			continue
		}
		until := time.Now().Add(o.LingerL2)
		if !p.Until.IsZero() && p.Until.Before(until) {
			until = p.Until
		}
		l.path.adopt(p.Addr, until)
	}
	return l
}

// savedAddresses are the addresses that this node answers for, and the lingering ones.
func (l *layer2) savedAddresses() []rundir.SavedAddress {
	list := []rundir.SavedAddress{}
	for a := range l.path.announcedAddrs.All() {
		list = append(list, rundir.SavedAddress{Addr: a})
	}
	for _, left := range l.path.lingering {
		list = append(list, rundir.SavedAddress{Addr: left.addr, Until: left.until})
	}
	return list
}

// offeredInterfaces returns the interfaces by which this node can be elected, without families
// that are withheld. Interfaces that are not known yet do not count.
func (l *layer2) offeredInterfaces(snap *cluster.Snapshot, withheld [2]bool) []l2.Interface {
	l.offer = l.offer.next(snap, l.announcer.Interfaces(), withheld, l.clustered)
	return l.offer.list
}

// prepare updates the handover state before d is applied.
func (l *layer2) prepare(d *plan.Desired, snap *cluster.Snapshot, now time.Time) {
	if !d.UsesL2 {
		return
	}
	if !l.assigned.Same(d.Addresses) {
		l.handover.setAssigned(l.assigned, d.Addresses, now)
		l.assigned = d.Addresses
	}
	l.recordInterfaces(l.offer.list, now)
	l.discover(d.Inputs.Members, snap.Nodes, now)
}

// nextRedirects returns the redirects for d, and starts tests of the unresponsive nodes in them.
// The previous speaker's redirects stay until the interfaces are known.
func (l *layer2) nextRedirects(d *plan.Desired, now time.Time) *redirect.Redirects {
	if l.redirects.Restored() && len(d.Inputs.Interfaces) == 0 && !l.ready(now) {
		return l.redirects
	}
	l.redirects = l.redirects.Next(d, l.handover.history, l.neighbours.Answers)
	l.neighbours.Set(l.redirects.Unresponsive)
	return l.redirects
}

// recordInterfaces detects a new interface, by which other nodes may become reachable.
func (l *layer2) recordInterfaces(list []l2.Interface, now time.Time) {
	if sortedset.Same(l.interfaces, list) {
		return
	}
	for _, i := range list {
		if !slices.ContainsFunc(l.interfaces, func(o l2.Interface) bool { return o.Name == i.Name }) {
			l.rejoinedAt = now
			l.handover.forgetSynced()
		}
	}
	l.interfaces = list
}

// discover updates the members in the handover state, and pauses it until the state of
// other nodes is known.
func (l *layer2) discover(m *membership.Members, nodes []*cluster.Node, now time.Time) {
	if m == nil && !l.clustered {
		return
	}
	unsynced := l.handover.unsynced(m)
	if at := l.handover.announceResumed(len(unsynced) == 0, now); at.After(l.rejoinedAt) {
		l.rejoinedAt = at
	}
	l.handover.pause(l.pauseEnd(m, nodes, len(unsynced) == 0, now))
	l.query(unsynced, now)
	if m != nil && m != l.members {
		l.setMembers(m)
	}
}

// pauseEnd returns until when no new address is admitted: until all nodes have been seen and all
// reachable ones are synced, for a limited time. The same applies to a node that has an interface
// again and does not reach some nodes: it may have been cut off, and the last node that it reaches
// may own its addresses.
func (l *layer2) pauseEnd(m *membership.Members, nodes []*cluster.Node, synced bool, now time.Time) time.Time {
	if l.discoveryEnd.IsZero() {
		l.discoveryEnd = now.Add(discoveryTime)
	}
	end := l.discoveryEnd
	if synced && !slices.ContainsFunc(nodes, func(n *cluster.Node) bool { _, met := m.Find(n.Name); return !met }) {
		end = time.Time{}
		l.discoveryEnd = now
	}
	if back := l.rejoinedAt.Add(discoveryTime); (len(m.Dead(l.handover.node)) > 0 || m.Alone(l.handover.node) ||
		!synced) && back.After(end) {
		end = back
	}
	return end
}

// setMembers sets the members, and sends the state of this node to nodes that have become
// reachable.
func (l *layer2) setMembers(m *membership.Members) {
	back := l.returned(m)
	l.members = m
	l.handover.history.RecordInterfaces(m)
	l.handover.setMembers(l.broadcast, func(node string) bool {
		n, known := m.Find(node)
		// From a node that lives only by its Lease, no message would report that it stopped.
		return !known || n.Dead() || n.ByLease
	})
	if len(back) == 0 {
		return
	}
	// Each node sends its state to each returning node directly. A broadcast is also relayed
	// by every node: 1,000 nodes would be busy with it for ten seconds.
	for _, packet := range l.handover.fullState() {
		for _, node := range back {
			l.send(node, packet)
		}
	}
}

// query asks nodes for their state while nothing is admitted without it.
func (l *layer2) query(nodes []string, now time.Time) {
	if l.querying = len(nodes) > 0 && !l.ready(now); !l.querying || now.Before(l.queriedAt.Add(queryInterval)) {
		return
	}
	l.queriedAt = now
	question := l.handover.query()
	for _, node := range nodes {
		l.send(node, question)
	}
}

// next returns when L2 must act without a change; zero: never.
func (l *layer2) next(now time.Time) time.Time {
	var queryAt time.Time
	if l.querying {
		queryAt = l.queriedAt.Add(queryInterval)
	}
	return earliest(now, l.handover.next(now), l.holdDown.End(now), queryAt)
}

// returned returns the nodes that gossip reaches now and did not at the last call of
// discover.
func (l *layer2) returned(m *membership.Members) (names []string) {
	for _, n := range m.Nodes {
		if was, _ := l.members.Find(n.Node); n.Reachable() && !was.Reachable() && n.Node != l.handover.node {
			names = append(names, n.Node)
		}
	}
	return names
}

// ready reports whether this node knows the owner of each address, and can be given
// some.
func (l *layer2) ready(now time.Time) bool { return !l.handover.isPaused(now) }

// checkProblems checks at intervals what blocks L2 traffic on this node.
func (l *layer2) checkProblems(ctx context.Context, d *plan.Desired, now time.Time) {
	if !d.UsesL2 || now.Sub(l.checkedAt) < problemInterval {
		return
	}
	l.checkedAt = now
	var addrs []netip.Addr
	for a := range d.Addresses.All() {
		if a.OverL2 {
			addrs = append(addrs, a.Addr)
		}
	}
	l.problems, l.asymmetric = l.announcer.Problems(ctx, addrs), l.announcer.AsymmetricPaths(ctx, addrs)
}

// returning reports whether this node has returned so recently that others are preferred.
func (l *layer2) returning(m *membership.Members, now time.Time) bool {
	return l.holdDown.Returning(func() bool { return l.handover.othersHold(m) }, now)
}

// updateHoldDown must be called when the other nodes receive this node's interfaces. If the
// result differs from decided, by which the pass was decided, another pass follows.
func (l *layer2) updateHoldDown(m *membership.Members, decided bool, now time.Time) (returning bool) {
	returning = l.holdDown.Update(len(l.offer.list) > 0, func() bool { return l.handover.othersHold(m) }, now)
	if returning != decided {
		notify.Changed(l.handover.changed)
	}
	return returning
}

// resumed announces all L2 addresses again: other nodes may have taken them over while this
// process was suspended. It waits until it knows which ones, because the connections that
// they have must be redirected to them from then on.
func (s *speaker) resumed(pause time.Duration) {
	s.Log.Warn("this process was suspended; announcing all layer 2 addresses again",
		"node", s.Node, "for", pause.Round(time.Millisecond))
	s.layer2.handover.resumed(time.Now())
}
