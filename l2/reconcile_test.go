package l2

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// An Announcer that reconsiders only the addresses that a State changes ends up like one that opens
// all its sockets again each time, for any States, and whatever happens between them.
func TestReconcileChangesEqualsAll(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newReconcileWorld(t)
		for w.step = range 50 {
			w.disturb()
			w.next()
			w.compare()
		}
		if w.partial < 20 {
			t.Errorf("seed %d: only %d of %d Sets reconsidered some addresses and not all", w.seed, w.partial, w.step+1)
		}
	})
}

// A reconcileWorld passes the same States to two Announcers, and lets the same happen to both.
type reconcileWorld struct {
	t       *testing.T
	r       *rand.Rand
	seed    uint64
	step    int
	host    *nstest.NS
	all     *node // opens all sockets again, and so reconsiders all addresses
	some    *node
	partial int // Sets for which some has kept its plans
	want    State
	subnet  bool // eth1 has 10.0.2.0/24
}

var reconcileUniverse = func() (all []netip.Addr) {
	for i := range 3 {
		for j := range 40 {
			all = append(all, netip.AddrFrom4([4]byte{10, 0, byte(i), byte(100 + 3*j)}),
				ip(fmt.Sprintf("fd00:%d::%d:%d", i, j%2*0x100, j)))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}()

func newReconcileWorld(t *testing.T) *reconcileWorld {
	w := &reconcileWorld{t: t, seed: rand.Uint64(), host: nstest.New(t, "node")}
	w.r = rand.New(rand.NewPCG(w.seed, 0))
	other := nstest.New(t, "other")
	for i, name := range []string{"eth0", "eth1", "pod0"} {
		nstest.Link(t, w.host, name, other, name)
		if name != "pod0" {
			w.host.Addr(name, fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%d::1/64", i))
		}
	}
	w.all, w.some = start(t, w.host), start(t, w.host)
	for _, n := range w.both() {
		for _, s := range []stage{listened, retry1, retry2, retry3, retry4, retry5} {
			n.phases.schedule.delays[s] = time.Hour // phases change only where the test says so
		}
		n.become(State{})
	}
	w.settle()
	return w
}

func (w *reconcileWorld) both() []*node { return []*node{w.all, w.some} }

// settle waits until both Announcers have applied the State to the current interfaces.
func (w *reconcileWorld) settle() {
	w.t.Helper()
	for _, n := range w.both() {
		until(w.t, func() string {
			var now []Interface
			inside(w.t, w.host, func() (err error) {
				now, err = ListInterfaces()
				return err
			})
			if got := n.Interfaces(); !slices.EqualFunc(got, now, Interface.equal) {
				return fmt.Sprintf("interfaces %v, want %v", got, now)
			}
			return ""
		})
		must(w.t, n.worker.do(context.Background(), func() {}))
	}
}

// disturb lets something happen to both Announcers that is no Set.
func (w *reconcileWorld) disturb() {
	addr := reconcileUniverse[w.r.IntN(len(reconcileUniverse))]
	switch w.r.IntN(12) {
	case 0:
		w.toggleSubnet()
	case 1: // a node of the cluster turns out to have a hardware address
		if len(w.want.Nodes) == 0 {
			return
		}
		for _, n := range w.both() {
			must(w.t, n.worker.do(context.Background(), func() {
				n.phases.mu.Lock()
				defer n.phases.mu.Unlock()
				n.knownNodes[mac(0x21)] = w.want.Nodes[0]
				n.clearKnownNodes(time.Now())
			}))
		}
	case 2, 3, 4: // another host has an address
		m := mac(byte(0x20 + w.step%3))
		for _, n := range w.both() {
			n.phases.mu.Lock()
			if x := n.phases.addresses[addr]; x != nil && (x.phase == Held || x.phase == Probing) &&
				!x.claims[0].socket.claims.speakers[m] {
				x.conflict = &Conflict{MAC: m, Count: 1}
				n.phases.giveUp(x, time.Now())
			}
			n.phases.mu.Unlock()
		}
	case 5, 6, 7: // no host has answered the probes
		for _, n := range w.both() {
			n.phases.mu.Lock()
			for _, x := range n.phases.addresses {
				if x.phase == Probing && x.want.Addr.Compare(addr) < 0 {
					x.timer, x.needsProbe = nil, false
					n.phases.advance(x, nil, time.Now())
				}
			}
			n.phases.mu.Unlock()
		}
	}
}

func (w *reconcileWorld) toggleSubnet() {
	link(w.t, w.host, "eth1", func(l netlink.Link) error {
		a, err := netlink.ParseAddr("10.0.2.1/24")
		switch {
		case err != nil:
			return err
		case w.subnet:
			return netlink.AddrDel(l, a)
		}
		return netlink.AddrAdd(l, a)
	})
	w.subnet = !w.subnet
	w.settle()
}

// next passes a new State to both Announcers. Both must return the same.
func (w *reconcileWorld) next() {
	w.t.Helper()
	w.want = w.random()
	var results []string
	must(w.t, w.all.worker.do(context.Background(), func() {
		for _, p := range w.all.worker.sockets {
			p.failed.Store(true)
		}
	}))
	w.all.applied = nil // an equal State, too, opens the sockets
	for _, n := range w.both() {
		plans := n.plansAt()
		have, err := n.Set(context.Background(), w.want)
		results = append(results, fmt.Sprint(have, err))
		if n == w.some && plans == n.plansAt() {
			w.partial++
		}
	}
	if results[0] != results[1] {
		w.t.Fatalf("seed %d, step %d: Set returns\n%s\nwant\n%s", w.seed, w.step, results[1], results[0])
	}
}

// plansAt identifies the plans: after a Set that reconsidered all addresses, it differs.
func (n *node) plansAt() (at string) {
	must(n.t, n.worker.do(context.Background(), func() { at = fmt.Sprintf("%p", n.worker.plans) }))
	return at
}

// random returns a State that differs from the last one: by a few addresses as a rule, sometimes
// by many, sometimes by what else a State has. Few States have an address twice.
func (w *reconcileWorld) random() State {
	next, r := w.want, w.r
	share := map[bool]float64{true: 0.03, false: 0.6}[r.IntN(6) > 0]
	before := slices.Clone(w.want.Addresses)
	next.Addresses = nil
	for n, addr := range reconcileUniverse {
		i := slices.IndexFunc(before, func(x Address) bool { return x.Addr == addr })
		switch {
		case r.Float64() >= share && i >= 0:
			next.Addresses = append(next.Addresses, before[i])
		case r.Float64() < share:
			names := [][]string{nil, nil, {"eth0"}, {"eth1"}, {"eth0", "eth1"}, {"eth9"}}[r.IntN(6)]
			if n%60 == 0 { // few: the sockets of pod0 have the first address and lose the last one
				names = [][]string{{"pod0"}, {"eth1", "pod0"}}[r.IntN(2)]
			}
			next.Addresses = append(next.Addresses,
				Address{
					Addr: addr, Interfaces: names, Probe: r.IntN(2) == 0, Round: uint64(r.IntN(2)),
					Yield: r.IntN(2) == 0,
				})
		}
	}
	if len(next.Addresses) > 0 && r.IntN(10) == 0 {
		i := r.IntN(len(next.Addresses))
		next.Addresses = slices.Insert(next.Addresses, i, next.Addresses[i])
	}
	switch r.IntN(10) {
	case 0:
		next.Speakers = []MAC{mac(byte(0x20 + r.IntN(3)))}
	case 1:
		next.Nodes = [][]netip.Addr{nil, {ip("10.0.0.2")}}[r.IntN(2)]
	case 2:
		next.Pools = [][]netip.Prefix{nil, {netip.MustParsePrefix("10.0.1.64/26"),
			netip.MustParsePrefix("10.0.2.0/25")}}[r.IntN(2)]
	}
	return next
}

func (w *reconcileWorld) compare() {
	w.t.Helper()
	want, got := w.all.internals(), w.some.internals()
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			w.t.Fatalf("seed %d, step %d: from line %d it has\n%s\nwant\n%s", w.seed, w.step, i,
				strings.Join(got[min(i, len(got)):min(i+3, len(got))], "\n"),
				strings.Join(want[min(i, len(want)):min(i+3, len(want))], "\n"))
		}
	}
}

// internals describes what an Announcer has made of its State, without what depends on time.
func (n *node) internals() (lines []string) {
	must(n.t, n.worker.do(context.Background(), func() {
		n.phases.mu.Lock()
		defer n.phases.mu.Unlock()
		for key, p := range n.worker.sockets {
			plan := n.worker.plans[key]
			lines = append(lines,
				fmt.Sprintf("%s on %s has %s, pools %v", key.protocol.name, p.iface.Name, sorted(p.claims.addresses),
					p.pools),
				fmt.Sprintf("%s on %s is planned with %v, pools %v", key.protocol.name, plan.iface.Name, plan.addresses,
					plan.pools),
				fmt.Sprintf("%s on %s passes %x", key.protocol.name, p.iface.Name, p.spans),
				fmt.Sprintf("%s on %s is in %v", key.protocol.name, p.iface.Name,
					slices.Sorted(maps.Keys(p.groups.joined))),
				fmt.Sprintf("%s on %s is %s, beside %s and speakers %s", key.protocol.name, p.iface.Name, p.claims.mac,
					sorted(p.claims.own), sorted(p.claims.speakers)))
		}
		for addr, x := range n.phases.addresses {
			for _, c := range x.claims {
				if c.socket.claims.addresses[addr] != x || c.socket.failed.Load() {
					n.t.Errorf("%s is on a socket that does not have it", addr)
				}
			}
			lines = append(lines, fmt.Sprintf("%s %v %s on %s: round %d, needs a probe %t, was held %t, conflict %v, "+
				"given up %d times, timer %t", addr, x.want, x.phase,
				x.names(), x.want.Round, x.needsProbe, x.wasHeld, x.conflict != nil, x.strikes, x.timer != nil))
		}
		lines = append(lines, fmt.Sprintf("plans for %d sockets, %d nodes known", len(n.worker.plans),
			len(n.knownNodes)))
	}))
	slices.Sort(lines)
	held := slices.DeleteFunc(n.Status(), func(s Status) bool { return s.Phase != Held })
	addrs := make([]netip.Addr, len(held))
	for i, s := range held {
		addrs[i] = s.Addr
	}
	if got := n.phases.held(); !slices.Equal(got, addrs) {
		n.t.Errorf("held are %v, and Set returns %v", addrs, got)
	}
	return lines
}

// sorted lists the keys of a map.
func sorted[K comparable, V any](m map[K]V) string {
	var keys []string
	for k := range m {
		keys = append(keys, fmt.Sprint(k))
	}
	slices.Sort(keys)
	return fmt.Sprint(keys)
}
