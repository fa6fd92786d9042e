package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// An announcer announces addresses to the network by one protocol.
type announcer interface {
	// Set announces the routes of d with allowed prefixes, keeps announced routes with
	// allowed prefixes that d lacks, and withdraws all others. allowed is sorted. Also after
	// an error, Set returns every prefix that is announced now or may be before the next
	// Set, sorted.
	Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) (announced []netip.Prefix, err error)
}

// withdrawDelay is how long an address stays announced after its last endpoint on this node
// is gone while other nodes have some. They see the same change at the same time, and
// routers that receive the withdrawal before their routes would refuse clients. Meanwhile
// this node forwards to the others.
const withdrawDelay = 250 * time.Millisecond

// An announcePath is BGP, which announces prefixes, or L2, where each address is a prefix
// of its own. An address may use both, and leaves the network with the last of them.
type announcePath struct {
	protocol  string // as Reasons name it
	announcer announcer
	targetOf  func(*plan.Desired) target
	// linger is how long an address is forwarded after it left this path.
	linger time.Duration

	// announcedPrefixes is what the announcer returned last. announcedAddrs are the
	// addresses in it: some of targetAddrs, and unwanted ones whose withdrawal failed.
	announcedPrefixes []netip.Prefix
	announcedAddrs    []netip.Addr
	targetAddrs       []netip.Addr
	// lingering are the addresses that left this path and may still receive traffic. An
	// entry ends with its time, or when this path announces the address again. It does not
	// end when the address is only wanted again, since announcing may fail, nor when
	// another path announces it, which clients of this path do not notice.
	lingering lingeringSet
	// lingeringAggregates are withdrawn aggregates. Until its time, traffic to an address
	// in one of them that no Service holds is rejected.
	lingeringAggregates map[netip.Prefix]time.Time
	// keeps returns which of the announced addresses that are unwanted stay for now: by BGP until
	// other nodes have announced them, and by L2 until their next owner is ready. Both lists are
	// sorted. nil: none does.
	keeps func(d *plan.Desired, unwanted []netip.Addr, now time.Time) []netip.Addr
	// delayed are the withdrawals that BGP delays, sorted by address. spare is for the next ones.
	delayed, spare []delayedWithdrawal
	kept           target // what keeps returned last
	memos          pathMemos
}

// A delayedWithdrawal is an address that stays announced until a time, as long as stays is true.
type delayedWithdrawal struct {
	addr  netip.Addr
	until time.Time
	stays bool
}

// pathMemos are for the passes that do not change what is announced: thousands of addresses may be
// kept or linger meanwhile.
type pathMemos struct {
	unwanted, wantAddrs sortedset.Memo[netip.Addr]
	wantPrefixes        sortedset.Memo[netip.Prefix]
	unannounced, inUse  sortedset.Memo[netip.Addr]
	lingering           lingeringMemo
}

// newBGPPath announces to routers.
func newBGPPath(a announcer, linger time.Duration) *announcePath {
	path := newAnnouncePath("bgp", a, linger, func(d *plan.Desired) target { return target{d.Prefixes, d.Routed} })
	path.keeps = path.delays
	return path
}

// newL2Path announces to neighbours on the link.
func newL2Path(a announcer, linger time.Duration) *announcePath {
	return newAnnouncePath("l2", a, linger, func(d *plan.Desired) target { return target{d.Hosts, d.Answered} })
}

func newAnnouncePath(protocol string, a announcer, linger time.Duration, targetOf func(*plan.Desired) target) *announcePath {
	return &announcePath{protocol: protocol, announcer: a, linger: linger, targetOf: targetOf, lingeringAggregates: map[netip.Prefix]time.Time{}}
}

// A target is what must be announced: these prefixes, for these addresses, both sorted.
type target struct {
	prefixes []netip.Prefix
	addrs    []netip.Addr
}

// target returns what d wants announced by this path, and the addresses that stay for now.
func (p *announcePath) target(d *plan.Desired, now time.Time) target {
	want := p.targetOf(d)
	if p.keeps == nil {
		return want
	}
	kept := p.keeps(d, p.memos.unwanted.Of(p.announcedAddrs, want.addrs, sortedset.Minus), now)
	if !slices.Equal(kept, p.kept.addrs) {
		p.kept = target{sortedset.HostPrefixes(kept), kept}
	}
	return target{
		p.memos.wantPrefixes.Of(want.prefixes, p.kept.prefixes, sortedset.UnionPrefixes),
		p.memos.wantAddrs.Of(want.addrs, p.kept.addrs, sortedset.Union),
	}
}

// delays is keeps of BGP: it delays the withdrawal of addresses with routes of their own.
func (p *announcePath) delays(d *plan.Desired, unwanted []netip.Addr, now time.Time) (kept []netip.Addr) {
	if len(unwanted) == 0 {
		p.delayed, p.spare = nil, nil
		return nil
	}
	routes, decided, delayed := p.announcedPrefixes, d.Addresses, p.delayed
	next := p.spare[:0]
	for _, a := range unwanted {
		var alone, assigned, again bool
		routes, alone = sortedset.Seek(routes, sortedset.HostPrefix(a), sortedset.ComparePrefixes)
		decided, assigned = sortedset.Seek(decided, a, compareAddress)
		delayed, again = sortedset.Seek(delayed, a, compareDelayed)
		w := delayedWithdrawal{addr: a, until: now.Add(withdrawDelay), stays: alone && assigned && decided[0].Handover}
		if again {
			w.until = delayed[0].until
		}
		if w.stays || again {
			next = append(next, w)
		}
	}
	p.delayed, p.spare = next, p.delayed
	kept = make([]netip.Addr, 0, len(next))
	for _, w := range next {
		if w.stays && now.Before(w.until) {
			kept = append(kept, w.addr)
		}
	}
	return kept
}

func compareDelayed(w delayedWithdrawal, a netip.Addr) int { return w.addr.Compare(a) }

func compareAddress(d *plan.Address, a netip.Addr) int { return d.Addr.Compare(a) }

// remaining returns what stays announced until the kernel has what want needs, and false if
// that is everything. An unwanted prefix stays until a wanted one covers the same address.
func (p *announcePath) remaining(want target) (target, bool) {
	unwanted, gone := sortedset.Minus(p.announcedAddrs, want.addrs), sortedset.MinusPrefixes(p.announcedPrefixes, want.prefixes)
	if len(unwanted)+len(gone) == 0 {
		return target{}, false // as nearly always, without a copy
	}
	// If nothing new is wanted, the lists are those of want, and growing has nothing to do.
	addrs, prefixes := want.addrs, want.prefixes
	if len(addrs) != len(p.announcedAddrs)-len(unwanted) {
		addrs = sortedset.Minus(p.announcedAddrs, unwanted)
	}
	if len(prefixes) != len(p.announcedPrefixes)-len(gone) {
		prefixes = sortedset.MinusPrefixes(p.announcedPrefixes, gone)
	}
	bridges := sortedset.Holding(gone, sortedset.Minus(addrs, sortedset.Covered(addrs, prefixes)))
	prefixes = sortedset.UnionPrefixes(prefixes, bridges)
	return target{prefixes, addrs}, len(addrs) != len(p.announcedAddrs) || len(prefixes) != len(p.announcedPrefixes)
}

// withoutNew returns the target without prefixes that are not announced yet and overlap a prefix of
// hold, or are the route of an outdated address.
func (p *announcePath) withoutNew(want target, hold []netip.Prefix, outdated []netip.Addr) target {
	if len(hold)+len(outdated) == 0 {
		return want
	}
	overlaps := func(n netip.Prefix) bool {
		return slices.ContainsFunc(hold, n.Overlaps) || n.IsSingleIP() && sortedset.Has(outdated, n.Addr())
	}
	var prefixes []netip.Prefix
	for _, n := range sortedset.MinusPrefixes(want.prefixes, p.announcedPrefixes) {
		if overlaps(n) {
			prefixes = append(prefixes, n)
		}
	}
	var addrs []netip.Addr
	for _, a := range sortedset.Minus(want.addrs, p.announcedAddrs) {
		if overlaps(sortedset.HostPrefix(a)) {
			addrs = append(addrs, a)
		}
	}
	if len(prefixes)+len(addrs) == 0 {
		return want
	}
	return target{sortedset.MinusPrefixes(want.prefixes, prefixes), sortedset.Minus(want.addrs, addrs)}
}

// record records what is announced after a call with want, and returns which addresses were
// withdrawn and which were added. services returns the Services of a withdrawn address.
func (p *announcePath) record(announced []netip.Prefix, want target, services func(netip.Addr) []cluster.Name) (left, came []netip.Addr) {
	if sortedset.Same(announced, p.announcedPrefixes) && sortedset.Same(want.addrs, p.targetAddrs) {
		return nil, nil
	}
	have := sortedset.Covered(want.addrs, announced)
	if stuck := sortedset.MinusPrefixes(announced, want.prefixes); len(stuck) > 0 {
		have = sortedset.Union(have, sortedset.Covered(sortedset.Minus(p.announcedAddrs, want.addrs), stuck))
	}
	now := time.Now()
	gone := sortedset.MinusPrefixes(p.announcedPrefixes, announced)
	left, came = sortedset.Minus(p.announcedAddrs, have), sortedset.Minus(have, p.announcedAddrs)
	// An aggregate of other addresses attracted traffic to new ones as soon as these were
	// forwarded. Now it is withdrawn, and their own routes could not be announced.
	var strayed []netip.Addr
	if !sortedset.Same(have, want.addrs) {
		strayed = sortedset.Minus(sortedset.Covered(sortedset.Minus(want.addrs, p.announcedAddrs), p.announcedPrefixes), have)
	}
	left = sortedset.Union(left, strayed)
	p.lingering = p.lingering.with(left, func(a netip.Addr) *lingeringAddress {
		return &lingeringAddress{addr: a, until: now.Add(p.linger), services: services(a)}
	})
	p.announcedPrefixes, p.announcedAddrs, p.targetAddrs = announced, have, want.addrs
	p.lingerAggregates(gone, now)
	p.lingering = p.lingering.without(have)
	return left, came
}
