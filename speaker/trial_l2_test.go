package speaker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// trialL2 is the link of a trial's node, its neighbours, and the other speakers.
type trialL2 struct {
	// luck is a source of its own, so that L2 does not change the random world.
	luck  *rand.Rand
	holds *handoverState
	ours  map[netip.Addr]bool // this node is the owner

	asking    map[netip.Addr]bool      // being probed, for a random time
	answering map[netip.Addr]bool      // by this node
	quiet     map[netip.Addr]time.Time // when it was last answered for
	unasked   map[netip.Addr]time.Time // when it was last requested
	asked     map[netip.Addr]bool      // in the last request
	held      map[netip.Addr]time.Time // since when a wanted address waits for another node
	last      *plan.Desired
}

func newTrialL2(seed uint64, log *slog.Logger) trialL2 {
	return trialL2{luck: rand.New(rand.NewPCG(seed, 3)), holds: newHandoverState("n1", nil),
		ours: map[netip.Addr]bool{}, asking: map[netip.Addr]bool{}, answering: map[netip.Addr]bool{},
		quiet:   map[netip.Addr]time.Time{},
		unasked: map[netip.Addr]time.Time{}, held: map[netip.Addr]time.Time{}, last: &plan.Desired{}}
}

// elect adds the addresses that this node owns and can serve.
func (t *trial) elect(d *plan.Desired) *plan.Desired {
	if t.l2.luck.IntN(3) == 0 {
		a := worldAddrs()[t.l2.luck.IntN(plantest.Addresses)]
		t.l2.ours[a] = !t.l2.ours[a]
	}
	q, was := *d, t.l2.last
	q.UsesL2, q.L2.Addresses = true, nil
	var answered []netip.Addr
	for a := range d.Addresses.All() {
		serves := slices.ContainsFunc(a.VIP.Frontends,
			func(f proxy.Frontend) bool { return len(f.External.Backends) > 0 })
		if t.l2.ours[a.Addr] && serves {
			q.L2.Addresses = append(q.L2.Addresses, l2.Address{Addr: a.Addr})
			answered = append(answered, a.Addr)
		}
	}
	q.Answered = sortedset.KeepSet(was.Answered, sortedset.AddrSet(answered...), netip.Addr.Compare)
	q.Hosts = sortedset.KeepSet(was.Hosts, sortedset.PrefixSet(sortedset.HostPrefixes(answered)...),
		sortedset.ComparePrefixes)
	q.Announce = sortedset.KeepSet(was.Announce, sortedset.With(q.Routed, answered, netip.Addr.Compare),
		netip.Addr.Compare)
	t.l2.last = &q
	return &q
}

// receive delivers a random message of another speaker, true or not.
func (t *trial) receive() {
	luck := t.l2.luck
	if luck.IntN(4) > 0 {
		return
	}
	addrs := []netip.Addr{worldAddrs()[luck.IntN(plantest.Addresses)]}
	s := message{instance: luck.Uint64N(2), sequence: uint64(time.Now().UnixNano())}
	if luck.IntN(2) == 0 {
		s.held = addrs
	} else {
		s.released = addrs
	}
	if err := t.l2.holds.receive("n2", s.encode()[0]); err != nil {
		t.violate("hear: %v", err)
	}
}

// endProbes ends random probes without a conflict.
func (t *trial) endProbes() {
	for _, a := range slices.SortedFunc(maps.Keys(t.l2.asking), netip.Addr.Compare) {
		if t.l2.luck.IntN(3) == 0 {
			delete(t.l2.asking, a)
			t.answer(a)
		}
	}
}

// linkFails decides whether a call of the link fails.
func (t *trial) linkFails() bool {
	if !t.failing || t.l2.luck.IntN(4) > 0 {
		return false
	}
	t.failed = true
	return true
}

func (t *trial) answer(a netip.Addr) {
	t.l2.answering[a] = true
	delete(t.l2.quiet, a)
	if t.intact && t.kernel[a] == nil {
		t.violate("I1: %s is answered for and not forwarded", a)
	}
}

// neighboursSend reports whether neighbours may send to an address that was answered for.
func (t *trial) neighboursSend(a netip.Addr) bool {
	left, ever := t.l2.quiet[a]
	return t.l2.answering[a] || ever && time.Since(left) < testLingerL2
}

// neighboursMaySend also counts addresses that were only requested.
func (t *trial) neighboursMaySend(a netip.Addr) bool {
	left, ever := t.l2.unasked[a]
	return t.neighboursSend(a) || t.l2.asking[a] || ever && time.Since(left) < testLingerL2
}

// checkL2 compares the kernel with I1 and I2, for neighbours.
func (t *trial) checkL2(when string) {
	for a := range t.l2.answering {
		if t.kernel[a] == nil {
			t.violate("I1, %s: %s is answered for and not forwarded", when, a)
		}
	}
	for a, left := range t.l2.quiet {
		if t.kernel[a] == nil && time.Since(left) < testLingerL2 {
			t.violate("I2, %s: %s was answered for %s ago and is not forwarded", when, a, time.Since(left))
		}
	}
}

// afterL2 checks what must hold after a pass without errors.
func (t *trial) afterL2() {
	now := time.Now()
	waiting := t.l2.holds.waiting(now)
	asked := slices.SortedFunc(maps.Keys(t.l2.answering), netip.Addr.Compare)
	asked = sortedset.Union(asked, slices.SortedFunc(maps.Keys(t.l2.asking), netip.Addr.Compare))
	want := slices.DeleteFunc(t.desired.Answered.Slice(), func(a netip.Addr) bool { return waiting[a] != "" })
	if !slices.Equal(asked, want) {
		t.violate("after: answered for or asked about %v, want %v", asked, want)
	}
	for a := range waiting {
		if long := now.Sub(t.l2.held[a]); long >= releaseTimeout {
			t.violate("after: %s waits for %s since %s", a, waiting[a], long)
		}
	}
}

// recordWaits must be called after each pass, failed or not: a wait ends when the address is
// not wanted, or no other node holds it, and a later wait has a time of its own. A wait that
// the product ended or began again by itself counts from its first pass.
func (t *trial) recordWaits() {
	now := time.Now()
	maps.DeleteFunc(t.l2.held, func(a netip.Addr, _ time.Time) bool {
		return !sortedset.HasAddr(t.desired.Answered, a) || t.l2.holds.holder(a) == ""
	})
	for a := range t.l2.holds.waiting(now) {
		if _, known := t.l2.held[a]; !known {
			t.l2.held[a] = now
		}
	}
}

// A trialLink answers for one address after the other, some at once and some later, and may
// fail in between.
type trialLink trial

func (l *trialLink) Set(_ context.Context, want l2.State) (have []netip.Addr, err error) {
	t, now := (*trial)(l), time.Now()
	if len(want.Addresses) > 0 && !t.forwarded {
		t.violate("addresses are answered for before anything is forwarded")
	}
	wanted := map[netip.Addr]bool{}
	for _, a := range want.Addresses {
		wanted[a.Addr] = true
		if _, announced := slices.BinarySearchFunc(t.taking, a.Addr, netip.Addr.Compare); !announced &&
			!t.l2.asked[a.Addr] && !t.l2.answering[a.Addr] {
			t.violate("%s is taken and the kernel was not programmed for it before", a.Addr)
		}
		switch {
		case t.l2.answering[a.Addr] || t.l2.asking[a.Addr]:
		case t.linkFails():
			err = errors.New("no")
		case a.Probe || t.l2.luck.IntN(4) == 0:
			t.l2.asking[a.Addr] = true
		default:
			t.answer(a.Addr)
		}
	}
	for _, a := range worldAddrs() {
		if wanted[a] {
			continue
		}
		if t.l2.asked[a] {
			t.l2.unasked[a] = now
		}
		delete(t.l2.asking, a)
		switch {
		case !t.l2.answering[a]:
		case t.linkFails():
			err = errors.New("no")
		default:
			delete(t.l2.answering, a)
			t.l2.quiet[a], t.l2.unasked[a] = now, now
		}
	}
	t.l2.asked = wanted
	t.check("answer")
	return slices.SortedFunc(maps.Keys(t.l2.answering), netip.Addr.Compare), err
}

// ignoresProbes returns only addresses that are already answered for.
type ignoresProbes struct{ of *l2Announcer }

func (s ignoresProbes) Set(ctx context.Context, d *plan.Desired,
	allowed sortedset.Set[netip.Prefix]) (sortedset.Set[netip.Prefix], error) {
	_, err := s.of.Set(ctx, d, allowed)
	return sortedset.PrefixSet(sortedset.HostPrefixes(s.of.have)...), err
}

func (s ignoresProbes) overL2() *l2Announcer { return s.of }
func (a *l2Announcer) overL2() *l2Announcer  { return a }
