package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// discoveryTime is how long a speaker that begins gives others to be heard of: until then
// it would think that it is alone, and answer for everything.
const discoveryTime = 2 * time.Second

// queryInterval is between two questions to who is heard and has not said what it answers for:
// packets get lost, most of all on a link that has only just come up.
const queryInterval = 200 * time.Millisecond

// problemInterval is between two looks at what in the kernel is in the way of addresses
// that go over L2.
const problemInterval = time.Minute

// layer2 is what a speaker needs for L2. All of it belongs to the goroutine of run.
type layer2 struct {
	announcer      *l2.Announcer
	path           *announcePath
	handover       *handoverState
	broadcast      func([]byte)                // to other speakers
	send           func(node string, b []byte) // to one of them
	clustered      bool                        // there are others to be heard of
	electable      *electable                  // as it was last
	members        *membership.Members         // that holds knows of
	assigned       []*plan.Address             // that holds knows of
	holdDown       membership.HoldDown         // of this node
	querying       bool                        // others have yet to say what they answer for
	queriedAt      time.Time                   // when they were asked that last
	redirects      *redirects                  // what is handed on
	discoveryEnd   time.Time                   // until when others are waited for to be heard of; zero: no wait has begun
	interfaces     []l2.Interface              // that matter, as of the last pass
	interfaceAdded time.Time                   // when there was one more of them
	checkedAt      time.Time                   // when problems were looked for
	problems       []l2.Problem
	asymmetric     []l2.AsymmetricPath
}

// newLayer2 opens nothing yet.
func newLayer2(o Options, adopted []netip.Addr, state *stateDirectory) *layer2 {
	saved, err := state.loadAnswered()
	if err != nil {
		o.Log.Warn("over L2", "err", err)
	}
	deaths, err := state.loadFailures()
	if err != nil {
		o.Log.Warn("over L2", "err", err)
	}
	state.failures = deaths
	var known []netip.Addr
	crashed := false
	for _, p := range saved {
		known = append(known, p.Addr)
		crashed = crashed || p.Until.IsZero()
	}
	l := &layer2{announcer: l2.New(l2.Options{Logger: o.Log, Registerer: o.Registry, Refresh: o.RefreshL2}), handover: newHandoverState(o.Node, known, o.Log)}
	l.holdDown = membership.NewHoldDown(deaths, crashed)
	l.redirects = &redirects{}
	for _, p := range saved {
		l.handover.setFormerOwner(p.Addr, p.Former)
	}
	l.path = newL2Path(&l2Announcer{set: l.announcer.Set, handover: l.handover}, o.LingerL2)
	l.path.keepsFor = l.handover.keepsFor
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

// electableInterfaces are those by which this node can be elected: none, rather than unknown ones,
// before they are known.
func (l *layer2) electableInterfaces(snap *cluster.Snapshot) []l2.Interface {
	l.electable = l.electable.next(snap, l.announcer.Interfaces(), l.clustered)
	return l.electable.list
}

// prepare has L2 know what d was decided by, before it is applied.
func (l *layer2) prepare(d *plan.Desired, snap *cluster.Snapshot, now time.Time) {
	if !d.Links {
		return
	}
	if !sortedset.Same(l.assigned, d.Addresses) {
		l.assigned = d.Addresses
		l.handover.prune(d.Addresses, now)
	}
	l.recordInterfaces(l.electable.list, now)
	l.discover(d.View.Members, snap.Nodes, l.broadcast, now)
}

// nextRedirects says what of d's addresses is handed on to whom.
func (l *layer2) nextRedirects(d *plan.Desired, now time.Time) *redirects {
	until := func(a netip.Addr) time.Time {
		if _, still := slices.BinarySearchFunc(l.path.announcedAddrs, a, netip.Addr.Compare); still {
			return now.Add(l.path.linger) // it leaves in this pass
		}
		return l.path.lingering[a].until
	}
	l.redirects = l.redirects.next(d, l.handover.formerOwners, l.handover.revision(), until, l.path.linger, now)
	return l.redirects
}

// recordInterfaces notices when there is one more interface by which others may be heard.
func (l *layer2) recordInterfaces(list []l2.Interface, now time.Time) {
	if sortedset.Same(l.interfaces, list) {
		return
	}
	for _, i := range list {
		if !slices.ContainsFunc(l.interfaces, func(o l2.Interface) bool { return o.Name == i.Name }) {
			l.interfaceAdded = now
			l.handover.forgetSynced()
		}
	}
	l.interfaces = list
}

// discover has holdings know who lives. It holds everything back until all nodes that should
// be there have been heard of, and those that live have said what they answer for, for a
// bounded time; also when this one heard nobody, and has an interface again: it may have
// been the one that was cut off.
func (l *layer2) discover(m *membership.Members, nodes []*cluster.Node, say func([]byte), now time.Time) {
	if m == nil && !l.clustered {
		return
	}
	if l.discoveryEnd.IsZero() {
		l.discoveryEnd = now.Add(discoveryTime)
	}
	until := l.discoveryEnd
	unsynced := l.handover.unsynced(m)
	if len(unsynced) == 0 && !slices.ContainsFunc(nodes, func(n *cluster.Node) bool { _, met := m.Find(n.Name); return !met }) {
		until = time.Time{}
		l.discoveryEnd = now
	}
	if back := l.interfaceAdded.Add(discoveryTime); (m.Alone(l.handover.node) || len(unsynced) > 0) && back.After(until) {
		until = back
	}
	l.handover.pause(until)
	l.query(unsynced, now)
	if m == nil || m == l.members {
		return
	}
	back := l.returned(m)
	l.members = m
	l.handover.setMembers(say, func(node string) bool {
		n, known := m.Find(node)
		// Of one that lives by its Lease nothing would be heard if it stopped.
		return !known || n.Dead() || n.ByLease
	})
	if len(back) == 0 {
		return
	}
	// Each is told by everybody. What is told to all is passed on by all, too: a thousand
	// nodes that greet one in that way are busy with it for ten seconds.
	for _, message := range l.handover.fullState() {
		for _, node := range back {
			l.send(node, message)
		}
	}
}

// query has nodes say what they answer for, as long as nothing is taken without knowing.
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

// next is when there is something to do although nothing changes, zero when nothing.
func (l *layer2) next(now time.Time) time.Time {
	var queryAt time.Time
	if l.querying {
		queryAt = l.queriedAt.Add(queryInterval)
	}
	return earliest(now, l.handover.next(now), l.holdDown.End(now), queryAt)
}

// returned are the nodes that are heard and were not when holdings was told of them last.
func (l *layer2) returned(m *membership.Members) (names []string) {
	for _, n := range m.Nodes {
		if was, _ := l.members.Find(n.Node); n.Heard() && !was.Heard() && n.Node != l.handover.node {
			names = append(names, n.Node)
		}
	}
	return names
}

// ready says whether this node may be given addresses: it knows who has them.
func (l *layer2) ready(now time.Time) bool { return !l.handover.isPaused(now) }

// checkProblems finds out what is in the way of traffic, now and then.
func (l *layer2) checkProblems(ctx context.Context, d *plan.Desired, now time.Time) {
	if !d.Links || now.Sub(l.checkedAt) < problemInterval {
		return
	}
	l.checkedAt = now
	var addrs []netip.Addr
	for _, a := range d.Addresses {
		if a.OverL2 {
			addrs = append(addrs, a.Addr)
		}
	}
	l.problems, l.asymmetric = l.announcer.Problems(ctx, addrs), l.announcer.AsymmetricPaths(ctx, addrs)
}
