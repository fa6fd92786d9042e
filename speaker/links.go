package speaker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// acquaintance is how long a speaker that begins gives others to be heard of: until then
// it would think that it is alone, and answer for everything.
const acquaintance = 2 * time.Second

// askInterval is between two questions to who is heard and has not said what it answers for:
// packets get lost, most of all on a link that has only just come up.
const askInterval = 200 * time.Millisecond

// problemInterval is between two looks at what in the kernel is in the way of addresses
// that go over L2.
const problemInterval = time.Minute

// links is what a speaker needs for L2. All of it belongs to the goroutine of run.
type links struct {
	announcer *l2.Announcer
	over      *overL2
	way       *way
	holds     *holdings
	say       func([]byte)                // to other speakers
	tell      func(node string, b []byte) // to one of them
	sociable  bool                        // there are others to be heard of
	reach     *reach                      // as it was last
	met       *membership.Members         // that holds knows of
	kept      []*plan.Address             // that holds knows of
	holdDown  membership.HoldDown         // of this node
	asks      bool                        // others have yet to say what they answer for
	asked     time.Time                   // when they were asked that last
	handed    *handing                    // what is handed on
	stranger  time.Time                   // until when others are waited for to be heard of; zero: no wait has begun
	known     []l2.Interface              // that matter, as of the last pass
	gained    time.Time                   // when there was one more of them
	looked    time.Time                   // when problems were looked for
	problems  []l2.Problem
	detours   []l2.AsymmetricPath
}

// newLinks opens nothing yet.
func newLinks(o Options, adopted []netip.Addr, m *memory) *links {
	parted, err := m.partings()
	if err != nil {
		o.Log.Warn("over L2", "err", err)
	}
	deaths, err := m.deaths()
	if err != nil {
		o.Log.Warn("over L2", "err", err)
	}
	m.dead = deaths
	var known []netip.Addr
	crashed := false
	for _, p := range parted {
		known = append(known, p.Addr)
		crashed = crashed || p.Until.IsZero()
	}
	k := &links{announcer: l2.New(l2.Options{Logger: o.Log, Registerer: o.Registry, Refresh: o.RefreshL2}), holds: newHoldings(o.Node, known, o.Log)}
	k.holdDown = membership.NewHoldDown(deaths, crashed)
	k.handed = &handing{}
	for _, p := range parted {
		k.holds.remember(p.Addr, p.Former)
	}
	k.over = &overL2{link: k.announcer, holds: k.holds}
	k.way = byL2(k.over, o.LingerL2)
	k.way.keeps = k.holds.keepsFor
	for _, p := range parted {
		if !slices.Contains(adopted, p.Addr) {
			continue
		}
		until := time.Now().Add(o.LingerL2)
		if !p.Until.IsZero() && p.Until.Before(until) {
			until = p.Until
		}
		k.way.adopt(p.Addr, until)
	}
	return k
}

// interfaces are those by which this node can be elected: none, rather than unknown ones,
// before they are known.
func (k *links) interfaces(snap *cluster.Snapshot) []l2.Interface {
	k.reach = k.reach.next(snap, k.announcer.Interfaces(), k.sociable)
	return k.reach.list
}

// prepare has L2 know what d was decided by, before it is applied.
func (k *links) prepare(d *plan.Desired, snap *cluster.Snapshot, now time.Time) {
	if !d.UsesL2 {
		return
	}
	if !sortedset.Same(k.kept, d.Addresses) {
		k.kept = d.Addresses
		k.holds.keep(d.Addresses, now)
	}
	k.gain(k.reach.list, now)
	k.meet(d.View.Members, snap.Nodes, k.say, now)
}

// handOn says what of d's addresses is handed on to whom.
func (k *links) handOn(d *plan.Desired, now time.Time) *handing {
	left := func(a netip.Addr) time.Time {
		if _, still := slices.BinarySearchFunc(k.way.have, a, netip.Addr.Compare); still {
			return now.Add(k.way.linger) // it leaves in this pass
		}
		return k.way.departed[a].until
	}
	k.handed = k.handed.next(d, k.holds.before, k.holds.changes(), left, k.way.linger, now)
	return k.handed
}

// gain notices when there is one more interface by which others may be heard.
func (k *links) gain(list []l2.Interface, now time.Time) {
	if sortedset.Same(k.known, list) {
		return
	}
	for _, i := range list {
		if !slices.ContainsFunc(k.known, func(o l2.Interface) bool { return o.Name == i.Name }) {
			k.gained = now
			k.holds.cutOff()
		}
	}
	k.known = list
}

// meet has holdings know who lives. It holds everything back until all nodes that should
// be there have been heard of, and those that live have said what they answer for, for a
// bounded time; also when this one heard nobody, and has an interface again: it may have
// been the one that was cut off.
func (k *links) meet(m *membership.Members, nodes []*cluster.Node, say func([]byte), now time.Time) {
	if m == nil && !k.sociable {
		return
	}
	if k.stranger.IsZero() {
		k.stranger = now.Add(acquaintance)
	}
	until := k.stranger
	strangers := k.holds.strangers(m)
	if len(strangers) == 0 && !slices.ContainsFunc(nodes, func(n *cluster.Node) bool { _, met := m.Find(n.Name); return !met }) {
		until = time.Time{}
		k.stranger = now
	}
	if back := k.gained.Add(acquaintance); (m.Alone(k.holds.node) || len(strangers) > 0) && back.After(until) {
		until = back
	}
	k.holds.pause(until)
	k.ask(strangers, now)
	if m == nil || m == k.met {
		return
	}
	back := k.back(m)
	k.met = m
	k.holds.meet(say, func(node string) bool {
		n, known := m.Find(node)
		// Of one that lives by its Lease nothing would be heard if it stopped.
		return !known || n.Dead() || n.ByLease
	})
	if len(back) == 0 {
		return
	}
	// Each is told by everybody. What is told to all is passed on by all, too: a thousand
	// nodes that greet one in that way are busy with it for ten seconds.
	for _, message := range k.holds.greeting() {
		for _, node := range back {
			k.tell(node, message)
		}
	}
}

// ask has nodes say what they answer for, as long as nothing is taken without knowing.
func (k *links) ask(nodes []string, now time.Time) {
	if k.asks = len(nodes) > 0 && !k.ready(now); !k.asks || now.Before(k.asked.Add(askInterval)) {
		return
	}
	k.asked = now
	question := k.holds.question()
	for _, node := range nodes {
		k.tell(node, question)
	}
}

// next is when there is something to do although nothing changes, zero when nothing.
func (k *links) next(now time.Time) (at time.Time) {
	all := []time.Time{k.holds.next(now), k.holdDown.End(now)}
	if k.asks {
		all = append(all, k.asked.Add(askInterval))
	}
	for _, t := range all {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// back are the nodes that are heard and were not when holdings was told of them last.
func (k *links) back(m *membership.Members) (names []string) {
	for _, n := range m.Nodes {
		if was, _ := k.met.Find(n.Node); n.Reachable() && !was.Reachable() && n.Node != k.holds.node {
			names = append(names, n.Node)
		}
	}
	return names
}

// ready says whether this node may be given addresses: it knows who has them.
func (k *links) ready(now time.Time) bool { return !k.holds.isPaused(now) }

// look finds out what is in the way of traffic, now and then.
func (k *links) look(ctx context.Context, d *plan.Desired, now time.Time) {
	if !d.UsesL2 || now.Sub(k.looked) < problemInterval {
		return
	}
	k.looked = now
	var addrs []netip.Addr
	for _, a := range d.Addresses {
		if a.OverL2 {
			addrs = append(addrs, a.Addr)
		}
	}
	k.problems, k.detours = k.announcer.Problems(ctx, addrs), k.announcer.AsymmetricPaths(ctx, addrs)
}

// thaw announces everything anew after this process stood still for a while.
func (s *speaker) thaw(stood time.Duration) {
	s.Log.Warn("this process stood still; what it answers for over L2 is announced anew", "node", s.Node, "for", stood.Round(time.Millisecond))
	s.links.holds.renewAll()
}

// A LinkStatus is what a speaker does over L2.
type LinkStatus struct {
	// Interfaces are those on which addresses may be answered for.
	Interfaces []l2.Interface `json:"interfaces,omitempty"`
	// Problems are what is in the way of traffic that comes over L2.
	Problems []l2.Problem `json:"problems,omitempty"`
	// Detours are where answers to clients behind a router leave by another interface than
	// the clients come by.
	Detours []l2.AsymmetricPath `json:"detours,omitempty"`
}

// on says what became of an address over L2.
func (p *published) on(addr netip.Addr) *l2.Status {
	i, ok := slices.BinarySearchFunc(p.answers, addr, func(s l2.Status, a netip.Addr) int { return s.Addr.Compare(a) })
	if !ok {
		return nil
	}
	return &p.answers[i]
}

// observedLinks is observed for what goes over L2.
func (p *published) observedLinks(r cluster.Reason, st AddressStatus) cluster.Reason {
	switch {
	case r.Code != cluster.Announced:
		if left, ok := p.parted[st.Address]; ok {
			r.Message += fmt.Sprintf("; forwarded until %s for neighbours that have not heard", left.until.Format(time.TimeOnly))
		}
	case p.waits[st.Address] != "":
		r.Code, r.Message = cluster.WaitingForRelease, fmt.Sprintf("not announced yet: waits for node %s to stop", p.waits[st.Address])
	case st.L2 == nil:
		r.Code, r.Message = cluster.WaitingForProxy, "not announced yet: the kernel does not forward it"
		if p.programmed {
			r.Code, r.Message = cluster.WaitingForNodes, "not announced yet: other nodes may answer for it that are not heard of yet"
		}
	case st.L2.Phase == l2.Probing:
		r.Code, r.Message = cluster.WaitingForProbe, "not announced yet: the link is asked whether somebody uses it"
	case st.L2.Phase == l2.Conflicting:
		r.Code, r.Message = cluster.AddressInUse, "not announced: "+st.L2.Reason
	case st.L2.Phase == l2.Waiting:
		r.Code, r.Message = cluster.NoInterface, "not announced: "+st.L2.Reason
	}
	return r
}
