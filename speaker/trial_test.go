package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// L2 lingers longer than BGP, as in a speaker.
const (
	testLinger   = 5 * time.Second
	testLingerL2 = 20 * time.Second
)

// A trial runs passes over a random world, with a kernel and a network whose calls fail at
// random, and records every violation of the invariants in doc.go.
type trial struct {
	*plantest.World
	pass    *pass
	decider *plan.Decider
	desired *plan.Desired
	applied *plan.Desired // forwarded last

	kernel    map[netip.Addr]*proxy.VIP
	owned     []netip.Prefix
	taking    []netip.Addr
	network   map[netip.Prefix]bool
	used      map[netip.Addr]bool        // addresses with clients
	before    map[netip.Addr]bool        // used before this pass
	left      map[netip.Addr]time.Time   // when an address left the network
	emptied   map[netip.Prefix]time.Time // when an aggregate did
	kept      map[netip.Addr]time.Time   // start of a delayed withdrawal
	forwarded bool                       // the forwarder has succeeded once
	intact    bool                       // no other program has changed the kernel
	failing   bool                       // calls may fail now
	failed    bool                       // one has, in this pass
	rejects   func(*proxy.VIP) bool      // VIPs that the kernel refuses; nil: none

	l2 trialL2

	violations []string
}

func newTrial(seed uint64) *trial {
	t := &trial{World: plantest.NewWorld(seed), kernel: map[netip.Addr]*proxy.VIP{}, network: map[netip.Prefix]bool{},
		used: map[netip.Addr]bool{}, left: map[netip.Addr]time.Time{}, emptied: map[netip.Prefix]time.Time{},
		kept: map[netip.Addr]time.Time{}, intact: true}
	t.decider = plan.NewDecider(plan.Config{Node: "n1"})
	log := slog.New(slog.DiscardHandler)
	t.l2 = newTrialL2(seed, log)
	t.pass = newPass((*trialKernel)(t), log,
		newBGPPath((*trialNetwork)(t), testLinger),
		newL2Path(&l2Announcer{set: (*trialLink)(t).Set, handover: t.l2.holds}, testLingerL2))
	return t
}

// bgp and l2 are the paths of the pass.
func (p *pass) bgp() *announcePath { return p.paths[0] }
func (p *pass) l2() *announcePath  { return p.paths[1] }

// decide decides about the present world.
func (t *trial) decide() {
	t.desired = t.elect(t.decider.Decide(t.Snapshot()))
	t.observe()
}

func (t *trial) violate(format string, args ...any) {
	t.violations = append(t.violations, fmt.Sprintf(format, args...))
}

// fails decides whether a call fails.
func (t *trial) fails() bool {
	if !t.failing || t.IntN(4) > 0 {
		return false
	}
	t.failed = true
	return true
}

// A trialKernel is a forwarder that checks its input.
type trialKernel trial

func (k *trialKernel) Set(_ context.Context, want proxy.State) error {
	t := (*trial)(k)
	t.endProbes()
	defer t.endProbes()
	if t.fails() {
		return errors.New("no")
	}
	kernel := map[netip.Addr]*proxy.VIP{}
	var last netip.Addr
	for v := range want.VIPs.All() {
		if !last.Less(v.Addr) { // a set trusts the order of its changes
			t.violate("VIP %s comes after %s", v.Addr, last)
		}
		last = v.Addr
		kernel[v.Addr] = v
	}
	if err := want.Validate(); err != nil {
		t.violate("invalid state: %v", err)
	}
	for _, a := range want.Taking {
		if t.l2.answering[a] {
			t.violate("%s is already answered for, not taken", a)
		}
	}
	if refused := t.refuse(want, kernel); refused != nil {
		t.kernel, t.owned = kernel, want.Owned
		t.check("refuse") // unless the table was destroyed before
		return refused
	}
	t.kernel, t.owned, t.taking, t.forwarded, t.intact, t.applied = kernel, want.Owned, want.Taking, true, true,
		t.desired
	t.observe()
	t.check("forward")
	t.checkBackends()
	return nil
}

func (k *trialKernel) Intact() proxy.Integrity { return proxy.Integrity{Intact: k.intact} }

func (*trialKernel) Blockade() *obstacle.Blockade { return nil }

func (k *trialKernel) Unprepared() []netip.Prefix { return nil }

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// worldAddrs returns the addresses that Services may have, and some around them.
func worldAddrs() (all []netip.Addr) {
	for i := range 16 {
		all = append(all, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	return all
}

// attracts reports whether the network sends an address here by its own route. An aggregate
// that is wanted only for other addresses does not count.
func (t *trial) attracts(a netip.Addr) (own bool) {
	wanted := sortedset.HasAddr(t.desired.Routed, a)
	for p := range t.network {
		if !p.Contains(a) {
			continue
		}
		_, forOthers := slices.BinarySearchFunc(t.desired.Aggregates, p, sortedset.ComparePrefixes)
		own = own || wanted || !forOthers
	}
	return own
}

// observe records which addresses clients use. They begin when an address is wanted,
// announced and forwarded. They may continue until its last route is gone, or, if an
// aggregate stays for others, until it is no longer forwarded.
func (t *trial) observe() {
	for _, a := range worldAddrs() {
		own := t.attracts(a)
		wanted := sortedset.HasAddr(t.desired.Routed, a)
		switch {
		case own && wanted && t.applied == t.desired && t.kernel[a] != nil:
			t.used[a] = true
			delete(t.left, a)
		case t.used[a] && !own:
			delete(t.used, a)
			t.left[a] = time.Now()
		}
	}
}

// check compares the kernel with I1 and I2.
func (t *trial) check(when string) {
	if !t.intact {
		return
	}
	for p := range t.network {
		if p.IsSingleIP() && t.kernel[p.Addr()] == nil {
			t.violate("I1, %s: %s is announced and not forwarded", when, p)
		}
		if !p.IsSingleIP() && !t.refuses(p) {
			t.violate("I1, %s: %s is announced, and its addresses without a Service are not rejected", when, p)
		}
	}
	for addr := range t.used {
		if t.kernel[addr] == nil {
			t.violate("I1, %s: %s is used and not forwarded", when, addr)
		}
	}
	for addr, left := range t.left {
		if t.kernel[addr] == nil && time.Since(left) < testLinger {
			t.violate("I2, %s: %s left the network %s ago and is not forwarded", when, addr, time.Since(left))
		}
	}
	t.checkL2(when)
	for p, left := range t.emptied {
		if time.Since(left) < testLinger && !t.refuses(p) {
			t.violate("I2, %s: %s left the network %s ago and its addresses without a Service are not rejected", when,
				p, time.Since(left))
		}
	}
}

// refuses reports whether the kernel rejects traffic in p that is for no VIP.
func (t *trial) refuses(p netip.Prefix) bool {
	return slices.ContainsFunc(t.owned, func(o netip.Prefix) bool {
		return o.Bits() <= p.Bits() && o.Contains(p.Addr())
	})
}

// checkBackends expects that clients that still send here reach an existing pod, if there
// is one.
func (t *trial) checkBackends() {
	exists := map[netip.AddrPort]bool{}
	for _, s := range t.Services {
		for e := range s.Endpoints.All() {
			exists[netip.AddrPortFrom(e.Addr, 8080)] = true
		}
	}
	for addr, vip := range t.kernel {
		sent := t.network[host(addr)] || t.used[addr] ||
			!t.left[addr].IsZero() && time.Since(t.left[addr]) < testLinger || t.neighboursSend(addr)
		for _, f := range vip.Frontends {
			if sent && len(f.External.Backends) == 0 && len(f.Internal.Backends) > 0 {
				t.violate("forward: %s receives traffic and has no backend, though %v could serve it", addr,
					f.Internal.Backends)
			}
			for _, b := range slices.Concat(f.External.Backends, f.Internal.Backends) {
				if !exists[b.Addr] {
					t.violate("forward: %s goes to %s, which is gone", addr, b.Addr)
				}
			}
		}
	}
}

// A trialNetwork is an announcer that announces one prefix after the other, and may fail in
// between.
type trialNetwork trial

func (n *trialNetwork) Set(_ context.Context, d *plan.Desired,
	allowed sortedset.Set[netip.Prefix]) (sortedset.Set[netip.Prefix], error) {
	t := (*trial)(n)
	if !t.forwarded {
		t.violate("sessions are opened before anything is forwarded")
	}
	var err error
	for p := range allowed.All() {
		_, known := sortedset.Get(d.Prefixes, p, sortedset.ComparePrefixes)
		switch {
		case t.network[p]:
		case !known:
			t.violate("announce: %s is to stay and is not there", p)
		case t.fails():
			err = errors.New("no")
		default:
			t.arrive(p)
		}
	}
	for _, p := range t.announced() {
		if _, stays := sortedset.Get(allowed, p, sortedset.ComparePrefixes); stays {
			continue
		}
		if t.fails() {
			err = errors.New("no")
			continue
		}
		t.leave(p)
	}
	t.check("announce")
	return sortedset.PrefixSet(t.announced()...), err
}

func (t *trial) arrive(p netip.Prefix) {
	t.network[p] = true
	delete(t.emptied, p)
	t.observe()
	answers := func(a netip.Addr) bool {
		vip := t.kernel[a]
		return p.Contains(a) && vip != nil &&
			slices.ContainsFunc(vip.Frontends, func(f proxy.Frontend) bool { return len(f.External.Backends) > 0 })
	}
	if !slices.ContainsFunc(t.desired.Routed.Slice(), answers) {
		t.violate("announce: %s is announced and has no backend", p)
	}
}

// leave restarts the linger time of addresses that other routes kept reachable.
func (t *trial) leave(p netip.Prefix) {
	delete(t.network, p)
	if !p.IsSingleIP() {
		t.emptied[p] = time.Now()
	}
	t.observe()
	for a := range t.before {
		if wanted := sortedset.HasAddr(t.desired.Routed, a); wanted && !t.used[a] && !t.failed && t.intact {
			t.violate("announce: %s is wanted and loses %s, its last route", a, p)
		}
	}
	for a, left := range t.left {
		if p.Contains(a) && time.Since(left) < testLinger {
			t.left[a] = time.Now()
		}
	}
}

func (t *trial) announced() []netip.Prefix {
	return slices.SortedFunc(maps.Keys(t.network), sortedset.ComparePrefixes)
}

// A runner is pass.run, or a mutant of it.
type runner func(p *pass, ctx context.Context, d *plan.Desired) error

// steps changes the world and passes, n times.
func (t *trial) steps(n int, run runner) {
	for range n {
		for range t.IntN(3) {
			t.Step()
		}
		time.Sleep(time.Duration(t.IntN(3000)) * time.Millisecond)
		if t.IntN(15) == 0 {
			t.kernel, t.intact = map[netip.Addr]*proxy.VIP{}, false // flush ruleset
		}
		t.failing, t.failed = t.IntN(3) == 0, false
		t.before = maps.Clone(t.used)
		t.receive()
		t.decide()
		err := run(t.pass, context.Background(), t.desired)
		t.after(err)
	}
}

// after checks what must hold once a pass is over.
func (t *trial) after(err error) {
	if t.failed != (err != nil) {
		t.violate("after: failed %v, error %v", t.failed, err)
	}
	if announced := t.pass.bgp().announcedPrefixes.Slice(); !slices.Equal(announced, t.announced()) {
		t.violate("after: recorded %v, but the network has %v", announced, t.announced())
	}
	var alone []netip.Addr
	for _, p := range sortedset.MinusFunc(t.announced(), t.desired.Prefixes.Slice(), sortedset.ComparePrefixes) {
		if p.IsSingleIP() {
			alone = append(alone, p.Addr())
		} else if !t.failed {
			t.violate("after: %s is announced and not wanted", p)
		}
	}
	t.checkDelayed(alone)
	t.recordWaits()
	if t.failed {
		return
	}
	if have, want := t.pass.bgp().announcedAddrs.Slice(),
		sortedset.Union(t.desired.Routed.Slice(), alone); !slices.Equal(have, want) {
		t.violate("after: announced %v, want %v", have, want)
	}
	t.afterL2()
	for _, p := range sortedset.MinusFunc(t.desired.Prefixes.Slice(), t.announced(), sortedset.ComparePrefixes) {
		t.violate("after: %s is not announced", p)
	}
	for addr := range t.kernel {
		left, departed := t.left[addr]
		if t.desired.Address(addr) == nil && (!departed || time.Since(left) >= testLinger) && !t.attracted(addr) &&
			!t.neighboursMaySend(addr) {
			t.violate("after: %s is forwarded for no reason", addr)
		}
	}
	for _, a := range worldAddrs() {
		if t.refuses(host(a)) && !t.Pools[0].Contains(a) && !t.attracted(a) {
			t.violate("after: %s is refused for no reason", a)
		}
	}
}

// attracted reports whether an aggregate attracts traffic to an address, or may still.
func (t *trial) attracted(a netip.Addr) bool {
	for p := range t.network {
		if p.Contains(a) {
			return true
		}
	}
	for p, left := range t.emptied {
		if p.Contains(a) && time.Since(left) < testLinger {
			return true
		}
	}
	return false
}

// checkDelayed expects that unwanted announcements are delayed withdrawals, for a bounded
// time.
func (t *trial) checkDelayed(kept []netip.Addr) {
	for addr := range t.kept {
		if !slices.Contains(kept, addr) {
			delete(t.kept, addr)
		}
	}
	for _, addr := range kept {
		a := t.desired.Address(addr)
		if a == nil || !a.Handover {
			delete(t.kept, addr)
			if !t.failed { // perhaps the withdrawal failed
				t.violate("after: %s is announced and not wanted", addr)
			}
			continue
		}
		if t.kept[addr].IsZero() {
			t.kept[addr] = time.Now()
		}
		if over := time.Since(t.kept[addr]); over >= withdrawDelay && !t.failed {
			t.violate("after: %s is announced %s after the last endpoint has gone", addr, over)
		}
	}
}

// try runs one trial and returns the violations.
func try(t *testing.T, seed uint64, run runner) (violations []string) {
	bubble.Test(t, func(*testing.T) {
		trial := newTrial(seed)
		trial.steps(30, run)
		violations = trial.violations
	})
	return violations
}
