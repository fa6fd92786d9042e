package speaker

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// A fleet is all speakers of a cluster on one link, and a neighbour that sends to an
// address all the time. Memberlist, the API server and the link are simulated. Elections,
// handover and passes are real.
type fleet struct {
	t     *testing.T
	nodes []*fleetNode
	snap  *cluster.Snapshot
	vip   netip.Addr

	apiDown      bool
	cut          map[string]bool // "a b": they do not reach each other
	dropMessages bool            // messages between speakers are lost
	byLease      time.Duration   // time until a Lease shows that an unreachable node is alive; zero: no Leases

	cache     *fleetNode // the node that the neighbour sends to
	sent      int        // requests, one per tick
	lost      int
	twoOwners time.Duration // time with two answering nodes
	noOwner   time.Duration // time without an answering node
	history   []string      // nodes that began and stopped answering
}

// A fleetNode is one node: its speaker, its kernel and its interface.
type fleetNode struct {
	*fleet
	name           string
	dead           bool // without power
	suspended      bool // the speaker; the kernel continues
	gone           bool // no speaker
	leaving        bool // it has announced that it leaves
	offered        bool // other nodes know its interfaces
	back           bool // and that it is returning
	offersInFlight []fleetOffer
	slow           time.Duration // additional delay of messages
	stale          time.Duration // delay of the API server's changes
	changedAt      time.Time     // time of the first unread change; zero: none

	snap          *cluster.Snapshot // as last read
	members       *membership.Members
	lastReachable map[string]time.Time // when each node was last reachable
	decider       *plan.Decider
	links         *layer2
	pass          *pass
	kernel        map[netip.Addr]bool
	asked         map[netip.Addr]time.Time // start of the probe
	answers       map[netip.Addr]bool
	had           map[netip.Addr]l2.Address // last request for each held address
	resumed       bool                      // it was suspended until now
}

// A fleetOffer is what a node reports about itself.
type fleetOffer struct {
	known time.Time // to the others
	back  bool
}

const (
	fleetTick       = 10 * time.Millisecond
	fleetDetection  = 400 * time.Millisecond // of memberlist
	fleetProbe      = 700 * time.Millisecond // of the link
	fleetOfferDelay = 30 * time.Millisecond  // of an offer
)

var fleetSubnet = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

func newFleet(t *testing.T, size int) *fleet {
	f := &fleet{t: t, vip: netip.MustParseAddr("192.0.2.200"), cut: map[string]bool{}}
	name := cluster.Name{Namespace: "shop", Name: "web"}
	var endpoints []cluster.Endpoint
	f.snap = &cluster.Snapshot{
		Pools: []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceL2,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.200-192.0.2.220")}}}, L2Ready: true,
		Assignments: cluster.AssignmentSet(cluster.Assignment{Addr: f.vip, Service: name, Pool: "lan"}),
	}
	for i := range size {
		node := fmt.Sprintf("n%d", i+1)
		f.snap.Nodes = append(f.snap.Nodes, &cluster.Node{
			Name: node, InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
		})
		endpoints = append(endpoints, cluster.Endpoint{
			Node: node, Ready: true, Serving: true, Addr: netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 1}),
		})
	}
	f.snap.Services = cluster.ServiceSet(cluster.Service{Spec: &cluster.Spec{Name: name,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
		Ports:                 []cluster.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}},
		Endpoints: plantest.Endpoints("http", 8080, endpoints...)})
	for _, n := range f.snap.Nodes {
		node := &fleetNode{fleet: f, name: n.Name, kernel: map[netip.Addr]bool{}}
		f.nodes = append(f.nodes, node)
		node.start()
	}
	f.prefer("n1")
	return f
}

// prefer lets the controller prefer a node.
func (f *fleet) prefer(node string) {
	next := *f.snap
	next.Claims = cluster.ClaimSet(&cluster.Claim{Addr: f.vip, Pool: "lan", Node: node})
	f.snap = &next
}

func (f *fleet) node(name string) *fleetNode {
	return f.nodes[slices.IndexFunc(f.nodes, func(n *fleetNode) bool { return n.name == name })]
}

// reboot switches a node off until all others have noticed, and starts its speaker with an
// empty kernel.
func (f *fleet) reboot(name string) *fleetNode {
	n := f.node(name)
	n.dead = true
	f.run(5 * time.Second)
	n.kernel = map[netip.Addr]bool{}
	n.start()
	return n
}

// start starts a speaker on the node, whose kernel may have a table of an earlier one.
func (n *fleetNode) start() {
	log := slog.New(slog.DiscardHandler)
	handover := newHandoverState(n.name, nil)
	handover.send = n.send
	n.dead, n.gone, n.leaving, n.offered, n.back, n.members = false, false, false, false, false, nil
	n.lastReachable, n.asked, n.answers = map[string]time.Time{}, map[netip.Addr]time.Time{}, map[netip.Addr]bool{}
	n.had, n.offersInFlight = map[netip.Addr]l2.Address{}, nil
	eth0 := []l2.Interface{{Name: "eth0", Prefixes: fleetSubnet}}
	n.decider = plan.NewDecider(plan.Config{Node: n.name, Interfaces: eth0})
	over := &l2Announcer{set: (*fleetLink)(n).Set, handover: handover}
	n.links = &layer2{
		handover: handover, path: newL2Path(over, time.Minute), broadcast: n.broadcast, send: n.send,
		offer: &interfaceOffer{list: eth0},
	}
	n.links.path.keeps = handover.keepsOf
	n.pass = newPass((*fleetKernel)(n), log, n.links.path)
}

// stop does what a speaker does on SIGTERM if the node stays.
func (n *fleetNode) stop() {
	n.leaving = true
	n.fleet.run(100 * time.Millisecond)
	n.step((*plan.Desired).WithoutL2)
	n.gone = true
}

type fleetKernel fleetNode

func (*fleetKernel) Intact() proxy.Integrity { return intact{}.Intact() }

func (*fleetKernel) Blockade() *obstacle.Blockade { return nil }

func (*fleetKernel) Unprepared() []netip.Prefix { return nil }

func (k *fleetKernel) Set(_ context.Context, want proxy.State) error {
	clear(k.kernel)
	for v := range want.VIPs.All() {
		k.kernel[v.Addr] = true
	}
	return nil
}

type fleetLink fleetNode

func (l *fleetLink) Set(_ context.Context, want l2.State) (have []netip.Addr, err error) {
	n, wanted := (*fleetNode)(l), map[netip.Addr]bool{}
	for _, a := range want.Addresses {
		wanted[a.Addr] = true
		was, had := n.had[a.Addr]
		if had && a.Probe {
			n.t.Errorf("%s must probe %s, which it holds", n.name, a.Addr)
		}
		if had && a.Round != was.Round {
			n.cache = n
			n.history = append(n.history, n.name+" announces")
		}
		if _, asking := n.asked[a.Addr]; n.answers[a.Addr] || asking {
			continue
		}
		if a.Probe {
			n.asked[a.Addr] = time.Now()
			continue
		}
		n.answer(a.Addr)
	}
	for a := range n.asked {
		if !wanted[a] {
			delete(n.asked, a)
		}
	}
	for a := range n.answers {
		if !wanted[a] {
			delete(n.answers, a)
			n.history = append(n.history, n.name+" stops")
		}
	}
	clear(n.had)
	for _, a := range want.Addresses {
		if n.answers[a.Addr] {
			n.had[a.Addr] = a
			have = append(have, a.Addr)
		}
	}
	return have, nil
}

// answer begins to answer, and the neighbour notices.
func (n *fleetNode) answer(a netip.Addr) {
	if !n.kernel[a] {
		n.t.Errorf("%s answers for %s and does not forward it", n.name, a)
	}
	n.answers[a] = true
	n.cache = n
	n.history = append(n.history, n.name+" answers")
}

// runs reports whether the node has a running speaker.
func (n *fleetNode) runs() bool { return !n.dead && !n.suspended && !n.gone }

// receivesFrom reports whether messages of o arrive at n.
func (n *fleetNode) receivesFrom(o *fleetNode) bool {
	return o.runs() && !n.cut[n.name+" "+o.name] && !n.cut[o.name+" "+n.name]
}

// receiveOffers delivers the node's earlier offers to the others.
func (n *fleetNode) receiveOffers() {
	for len(n.offersInFlight) > 0 && !time.Now().Before(n.offersInFlight[0].known) {
		n.offered, n.back, n.offersInFlight = true, n.offersInFlight[0].back, n.offersInFlight[1:]
	}
}

// updateMembers computes the members as memberlist would.
func (n *fleetNode) updateMembers() {
	now, m := time.Now(), &membership.Members{}
	for _, o := range n.nodes {
		if o == n || n.receivesFrom(o) {
			n.lastReachable[o.name] = now
		}
		at, known := n.lastReachable[o.name]
		if !known {
			continue
		}
		silent := now.Sub(at)
		byLease := silent >= fleetDetection+n.byLease && n.byLease > 0 && o.runs()
		one := membership.Member{
			Node: o.name, Alive: (silent < fleetDetection || byLease) && !o.leaving, ByLease: byLease, Left: o.leaving,
			Returning: o.back,
		}
		if o.offered {
			one.Interfaces = []cluster.Interface{{Name: "eth0", Prefixes: fleetSubnet}}
		}
		m.Nodes = append(m.Nodes, one)
	}
	if n.members == nil || !slices.EqualFunc(n.members.Nodes, m.Nodes, func(a, b membership.Member) bool {
		return a.Node == b.Node && a.Alive == b.Alive && a.ByLease == b.ByLease && a.Left == b.Left &&
			a.Returning == b.Returning && len(a.Interfaces) == len(b.Interfaces)
	}) {
		n.members = m
	}
}

// broadcast delivers a message after a moment. Nodes that do not receive it read by a Lease
// that an address was released.
func (n *fleetNode) broadcast(message []byte) {
	s, err := parseMessage(message)
	if err != nil {
		n.t.Error(err)
	}
	for _, o := range n.nodes {
		n.send(o.name, message)
		if n.byLease > 0 && len(s.released) > 0 && !o.receivesFrom(n) {
			time.AfterFunc(2*time.Millisecond, func() { o.links.handover.reannounceAll() })
		}
	}
}

// send delivers a message to one node.
func (n *fleetNode) send(node string, message []byte) {
	o := n.node(node)
	if o == n || n.dropMessages || !o.receivesFrom(n) {
		return
	}
	time.AfterFunc(2*time.Millisecond+o.slow, func() {
		if err := o.links.handover.receive(n.name, message); err != nil {
			n.t.Error(err)
		}
	})
}

// step is one pass of the node's speaker.
func (n *fleetNode) step(reshape func(*plan.Desired) *plan.Desired) {
	if n.snap != n.fleet.snap && n.changedAt.IsZero() {
		n.changedAt = time.Now()
	}
	if n.snap == nil || !n.apiDown && time.Since(n.changedAt) >= n.stale {
		n.snap, n.changedAt = n.fleet.snap, time.Time{}
	}
	n.updateMembers()
	now := time.Now()
	n.decider.Config.Members, n.decider.Config.Returning = n.members, n.links.returning(n.members, now)
	d := n.decider.Decide(n.snap)
	if n.resumed {
		n.links.handover.resumed(now)
		n.resumed = false
	}
	n.links.discover(n.members, n.snap.Nodes, now)
	if n.links.ready(now) {
		n.offersInFlight = append(n.offersInFlight,
			fleetOffer{now.Add(fleetOfferDelay), n.links.updateHoldDown(n.members, n.decider.Config.Returning, now)})
	}
	if reshape != nil {
		d = reshape(d)
	}
	if err := n.pass.run(context.Background(), d); err != nil {
		n.t.Error(err)
	}
	for a, since := range n.asked {
		if time.Since(since) >= fleetProbe {
			delete(n.asked, a)
			n.answer(a)
		}
	}
}

// run lets time pass. Each tick has a pass of each speaker, and a request of the neighbour.
func (f *fleet) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(fleetTick) {
		for _, n := range f.nodes {
			n.receiveOffers()
		}
		for _, n := range f.nodes {
			if n.runs() {
				n.step(nil)
			}
		}
		bubble.Wait()
		f.request()
	}
}

// request sends a request to the node that the neighbour maps the address to.
func (f *fleet) request() {
	answering := 0
	for _, n := range f.nodes {
		if n.answers[f.vip] && n.runs() {
			answering++
		}
	}
	switch {
	case answering == 0:
		f.noOwner += fleetTick
	case answering > 1:
		f.twoOwners += fleetTick
	}
	f.sent++
	if f.cache == nil || f.cache.dead || !f.cache.kernel[f.vip] {
		f.lost++
	}
}

// owner expects that exactly this node answers, and that the neighbour sends to it.
func (f *fleet) owner(when, want string) {
	f.t.Helper()
	var got []string
	for _, n := range f.nodes {
		if n.answers[f.vip] && !n.dead && !n.gone {
			got = append(got, n.name)
		}
	}
	if !slices.Equal(got, []string{want}) {
		f.t.Errorf("%s: %v answer, want %s: %s", when, got, want, strings.Join(f.history, ", "))
	}
	if f.cache == nil || f.cache.name != want {
		f.t.Errorf("%s: the neighbour does not send to %s: %s", when, want, strings.Join(f.history, ", "))
	}
}

// calm runs for a time in which no request may be lost.
func (f *fleet) calm(when string, d time.Duration) {
	f.t.Helper()
	f.reset()
	f.run(d)
	f.within(when, 0, 0)
}

func (f *fleet) reset() { f.sent, f.lost, f.twoOwners, f.noOwner = 0, 0, 0, 0 }

// within bounds the time of lost requests, and of two answering nodes, since reset.
func (f *fleet) within(when string, lost, two time.Duration) {
	f.t.Helper()
	if took := time.Duration(f.lost) * fleetTick; took > lost || f.twoOwners > two {
		f.t.Errorf("%s: requests were lost for %s, want %s at most; two answered for %s, want %s at most: %s", when,
			took, lost, f.twoOwners, two, strings.Join(f.history, ", "))
	}
}

// answered expects that a node answered at any time since reset.
func (f *fleet) answered(when string) {
	f.t.Helper()
	if f.noOwner > 0 {
		f.t.Errorf("%s: no node answered for %s: %s", when, f.noOwner, strings.Join(f.history, ", "))
	}
}

// calm2 is calm, with two answering nodes.
func (f *fleet) calm2(when string, d time.Duration) {
	f.t.Helper()
	f.reset()
	f.run(d)
	f.within(when, 0, d)
}
