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

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/plantest"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// trialLinks are the links of a trial's node, its neighbours, and the other speakers.
type trialLinks struct {
	// luck is a source of its own, so that what happens on the links makes no other world.
	luck  *rand.Rand
	holds *holdings
	ours  map[netip.Addr]bool // whether it is this node that shall answer

	asking    map[netip.Addr]bool      // being probed; any time it is answered for
	answering map[netip.Addr]bool      // by this node
	quiet     map[netip.Addr]time.Time // since when it is not answered for any more
	unasked   map[netip.Addr]time.Time // since when the link is not asked for it any more
	asked     map[netip.Addr]bool      // that the link was asked for last
	held      map[netip.Addr]time.Time // since when another node holds what is wanted here
	last      *plan.Desired
}

func newTrialLinks(seed uint64, log *slog.Logger) trialLinks {
	return trialLinks{luck: rand.New(rand.NewPCG(seed, 3)), holds: newHoldings("n1", nil, log), ours: map[netip.Addr]bool{},
		asking: map[netip.Addr]bool{}, answering: map[netip.Addr]bool{}, quiet: map[netip.Addr]time.Time{}, unasked: map[netip.Addr]time.Time{},
		held: map[netip.Addr]time.Time{}, last: &plan.Desired{}}
}

// elect has this node answer for some addresses: for those of which it is the owner and
// that can be served.
func (t *trial) elect(d *plan.Desired) *plan.Desired {
	if t.links.luck.IntN(3) == 0 {
		a := worldAddrs()[t.links.luck.IntN(plantest.Addresses)]
		t.links.ours[a] = !t.links.ours[a]
	}
	q, was := *d, t.links.last
	q.UsesL2, q.L2.Addresses, q.Answered = true, nil, nil
	for _, a := range d.Addresses {
		serves := slices.ContainsFunc(a.VIP.Frontends, func(f proxy.Frontend) bool { return len(f.External.Backends) > 0 })
		if t.links.ours[a.Addr] && serves {
			q.L2.Addresses = append(q.L2.Addresses, l2.Address{Addr: a.Addr})
			q.Answered = append(q.Answered, a.Addr)
		}
	}
	q.Answered, q.Hosts = sortedset.Keep(was.Answered, q.Answered), sortedset.Keep(was.Hosts, sortedset.HostPrefixes(q.Answered))
	q.Announce = sortedset.Keep(was.Announce, sortedset.Union(q.Routed, q.Answered, netip.Addr.Compare))
	t.links.last = &q
	return &q
}

// hear has another speaker say something, true or not.
func (t *trial) hear() {
	luck := t.links.luck
	if luck.IntN(4) > 0 {
		return
	}
	addrs := []netip.Addr{worldAddrs()[luck.IntN(plantest.Addresses)]}
	s := saying{boot: luck.Uint64N(2), count: uint64(time.Now().UnixNano())}
	if luck.IntN(2) == 0 {
		s.held = addrs
	} else {
		s.released = addrs
	}
	if err := t.links.holds.hear("n2", s.messages()[0]); err != nil {
		t.violate("hear: %v", err)
	}
}

// find has probes end that have found nobody, at any time.
func (t *trial) find() {
	for _, a := range slices.SortedFunc(maps.Keys(t.links.asking), netip.Addr.Compare) {
		if t.links.luck.IntN(3) == 0 {
			delete(t.links.asking, a)
			t.answer(a)
		}
	}
}

// linkFails decides whether a call of the link fails.
func (t *trial) linkFails() bool {
	if !t.failing || t.links.luck.IntN(4) > 0 {
		return false
	}
	t.failed = true
	return true
}

func (t *trial) answer(a netip.Addr) {
	t.links.answering[a] = true
	delete(t.links.quiet, a)
	if t.intact && t.kernel[a] == nil {
		t.violate("I1: %s is answered for and not forwarded", a)
	}
}

// neighboursSend says whether neighbours may send to an address, by what they heard.
func (t *trial) neighboursSend(a netip.Addr) bool {
	left, ever := t.links.quiet[a]
	return t.links.answering[a] || ever && time.Since(left) < testLingerL2
}

// neighboursMaySend also counts what was only asked for.
func (t *trial) neighboursMaySend(a netip.Addr) bool {
	left, ever := t.links.unasked[a]
	return t.neighboursSend(a) || t.links.asking[a] || ever && time.Since(left) < testLingerL2
}

// checkLinks holds the kernel against I1 and I2, for neighbours.
func (t *trial) checkLinks(when string) {
	for a := range t.links.answering {
		if t.kernel[a] == nil {
			t.violate("I1, %s: %s is answered for and not forwarded", when, a)
		}
	}
	for a, left := range t.links.quiet {
		if t.kernel[a] == nil && time.Since(left) < testLingerL2 {
			t.violate("I2, %s: %s was answered for %s ago and is not forwarded", when, a, time.Since(left))
		}
	}
}

// afterLinks checks what must hold once a pass is over in which nothing failed.
func (t *trial) afterLinks() {
	now := time.Now()
	waiting := t.links.holds.waiting(now)
	asked := slices.SortedFunc(maps.Keys(t.links.answering), netip.Addr.Compare)
	asked = sortedset.Union(asked, slices.SortedFunc(maps.Keys(t.links.asking), netip.Addr.Compare), netip.Addr.Compare)
	want := slices.DeleteFunc(slices.Clone(t.desired.Answered), func(a netip.Addr) bool { return waiting[a] != "" })
	if !slices.Equal(asked, want) {
		t.violate("after: answered for or asked about %v, want %v", asked, want)
	}
	for a := range t.links.held {
		if waiting[a] == "" {
			delete(t.links.held, a)
		}
	}
	for a := range waiting {
		if _, known := t.links.held[a]; !known {
			t.links.held[a] = now
		}
		if long := now.Sub(t.links.held[a]); long >= releasePatience {
			t.violate("after: %s waits for %s since %s", a, waiting[a], long)
		}
	}
}

// A trialLink is a link that answers for one address after the other, some at once and
// some later, and may give up in between.
type trialLink trial

func (l *trialLink) Set(_ context.Context, want l2.State) (have []netip.Addr, err error) {
	t, now := (*trial)(l), time.Now()
	if len(want.Addresses) > 0 && !t.forwarded {
		t.violate("addresses are answered for before anything is forwarded")
	}
	wanted := map[netip.Addr]bool{}
	for _, a := range want.Addresses {
		wanted[a.Addr] = true
		if _, told := slices.BinarySearchFunc(t.taking, a.Addr, netip.Addr.Compare); !told && !t.links.asked[a.Addr] && !t.links.answering[a.Addr] {
			t.violate("%s is taken and the kernel was not told before", a.Addr)
		}
		switch {
		case t.links.answering[a.Addr] || t.links.asking[a.Addr]:
		case t.linkFails():
			err = errors.New("no")
		case a.Probe || t.links.luck.IntN(4) == 0:
			t.links.asking[a.Addr] = true
		default:
			t.answer(a.Addr)
		}
	}
	for _, a := range worldAddrs() {
		if wanted[a] {
			continue
		}
		if t.links.asked[a] {
			t.links.unasked[a] = now
		}
		delete(t.links.asking, a)
		switch {
		case !t.links.answering[a]:
		case t.linkFails():
			err = errors.New("no")
		default:
			delete(t.links.answering, a)
			t.links.quiet[a], t.links.unasked[a] = now, now
		}
	}
	t.links.asked = wanted
	t.check("answer")
	return slices.SortedFunc(maps.Keys(t.links.answering), netip.Addr.Compare), err
}

// A sceptic tells only what the link has begun to answer for.
type sceptic struct{ of *overL2 }

func (s sceptic) Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) ([]netip.Prefix, error) {
	_, err := s.of.Set(ctx, d, allowed)
	return sortedset.HostPrefixes(s.of.have), err
}

func (s sceptic) overL2() *overL2 { return s.of }
func (o *overL2) overL2() *overL2 { return o }
