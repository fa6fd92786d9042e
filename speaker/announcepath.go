package speaker

import (
	"context"
	"maps"
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
	// keepsFor reports whether an unwanted address stays for now: by BGP until other nodes
	// have announced it, and by L2 until its next owner is ready. nil: none does.
	keepsFor func(d *plan.Desired, a netip.Addr, now time.Time) bool
	// withdrawAt ends the delays of BGP.
	withdrawAt map[netip.Addr]time.Time
}

// newBGPPath announces to routers.
func newBGPPath(a announcer, linger time.Duration) *announcePath {
	path := newAnnouncePath("bgp", a, linger, func(d *plan.Desired) target { return target{d.Prefixes, d.Routed} })
	path.withdrawAt, path.keepsFor = map[netip.Addr]time.Time{}, path.delays
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
	if p.keepsFor == nil {
		return want
	}
	leaving := sortedset.Minus(p.announcedAddrs, want.addrs)
	maps.DeleteFunc(p.withdrawAt, func(a netip.Addr, _ time.Time) bool { return !sortedset.Has(leaving, a) })
	var kept []netip.Addr
	for _, a := range leaving {
		if p.keepsFor(d, a, now) {
			kept = append(kept, a)
		}
	}
	if len(kept) == 0 {
		return want
	}
	return target{sortedset.UnionPrefixes(want.prefixes, sortedset.HostPrefixes(kept)), sortedset.Union(want.addrs, kept)}
}

// delays is keepsFor of BGP: it delays the withdrawal of an address with a route of its own.
func (p *announcePath) delays(d *plan.Desired, addr netip.Addr, now time.Time) bool {
	_, alone := slices.BinarySearchFunc(p.announcedPrefixes, sortedset.HostPrefix(addr), sortedset.ComparePrefixes)
	if a := d.Address(addr); a == nil || !a.Handover || !alone {
		return false
	}
	until, delayed := p.withdrawAt[addr]
	if !delayed {
		until = now.Add(withdrawDelay)
		p.withdrawAt[addr] = until
	}
	return now.Before(until)
}

// remaining returns what stays announced until the kernel has what want needs, and false if
// that is everything. An unwanted prefix stays until a wanted one covers the same address.
func (p *announcePath) remaining(want target) (target, bool) {
	if len(sortedset.Minus(p.announcedAddrs, want.addrs)) == 0 && len(sortedset.MinusPrefixes(p.announcedPrefixes, want.prefixes)) == 0 {
		return target{}, false // as nearly always, without a copy
	}
	addrs := sortedset.Intersect(p.announcedAddrs, want.addrs)
	prefixes := sortedset.IntersectPrefixes(p.announcedPrefixes, want.prefixes)
	bridges := sortedset.Holding(sortedset.MinusPrefixes(p.announcedPrefixes, prefixes), sortedset.Minus(addrs, sortedset.Covered(addrs, prefixes)))
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
	strayed := sortedset.Minus(sortedset.Covered(sortedset.Minus(want.addrs, p.announcedAddrs), p.announcedPrefixes), have)
	left = sortedset.Union(left, strayed)
	p.lingering = p.lingering.with(left, func(a netip.Addr) *lingeringAddress {
		return &lingeringAddress{addr: a, until: now.Add(p.linger), services: services(a)}
	})
	p.announcedPrefixes, p.announcedAddrs, p.targetAddrs = announced, have, want.addrs
	p.lingerAggregates(gone, now)
	p.lingering = p.lingering.without(have)
	return left, came
}
