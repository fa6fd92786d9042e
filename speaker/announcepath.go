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

// An announcer tells the network which addresses this node has.
type announcer interface {
	// Set announces those routes of d whose prefixes are allowed, and goes on with
	// those that are allowed and no longer d's; and no others. allowed is sorted. It
	// does as much as it can and returns what the network is told now, or may be told
	// any time before the next Set, sorted, also when it returns an error.
	Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) (told []netip.Prefix, err error)
}

// withdrawDelay is how long an address stays announced after its last endpoint on
// this node has gone while other nodes have some. They see the same change at the
// same time and announce it too; whoever withdraws first leaves routers without
// any route, and they refuse clients. Until then this node forwards to the others.
const withdrawDelay = 250 * time.Millisecond

// A announcePath is one of the ways in which addresses are announced: BGP, by prefixes, or L2,
// by addresses, each of which is a prefix of its own. An address may go several ways,
// and leaves the network when the last of them is closed to it.
type announcePath struct {
	protocol  string // as Reasons name it
	announcer announcer
	targetOf  func(*plan.Desired) target
	// linger is how long an address is forwarded after it left this way.
	linger time.Duration

	// announcedPrefixes is what the network is told, as the announcer last said, and have are
	// the addresses that are announced by it: those of asked that it covers, and
	// those that it could not be made to forget.
	announcedPrefixes []netip.Prefix
	announcedAddrs    []netip.Addr
	targetAddrs       []netip.Addr
	// lingering are the addresses that have left and may still be asked for. An entry
	// goes when its time is over or the address is announced this way again, not when
	// it is wanted again: announcing it may fail; nor when it is announced another way:
	// whoever asks by this one hears nothing of that.
	lingering map[netip.Addr]lingeringAddress
	// lingeringAggregates are the aggregates that have left, and until when what is in them and
	// nobody's is refused: until then somebody may send to it.
	lingeringAggregates map[netip.Prefix]time.Time
	// withdrawAt are the addresses that are announced until then although they are
	// no longer wanted, so that others can take over. It is nil where whoever takes
	// over waits to be told.
	withdrawAt map[netip.Addr]time.Time
	// keepsFor says whether an address that is no longer wanted stays for now, since whoever
	// takes over is not ready; nil: none does.
	keepsFor func(d *plan.Desired, a netip.Addr, now time.Time) bool
}

// newBGPPath is the way to routers.
func newBGPPath(a announcer, linger time.Duration) *announcePath {
	path := newAnnouncePath("bgp", a, linger, func(d *plan.Desired) target { return target{d.Prefixes, d.Routed} })
	path.withdrawAt = map[netip.Addr]time.Time{}
	return path
}

// newL2Path is the way to neighbours.
func newL2Path(a announcer, linger time.Duration) *announcePath {
	return newAnnouncePath("l2", a, linger, func(d *plan.Desired) target { return target{d.Hosts, d.Answered} })
}

func newAnnouncePath(protocol string, a announcer, linger time.Duration, wants func(*plan.Desired) target) *announcePath {
	return &announcePath{protocol: protocol, announcer: a, linger: linger, targetOf: wants, lingering: map[netip.Addr]lingeringAddress{}, lingeringAggregates: map[netip.Prefix]time.Time{}}
}

// A target is what shall be announced: these prefixes, for these addresses. Both
// are sorted.
type target struct {
	prefixes []netip.Prefix
	addrs    []netip.Addr
}

// target is what d wants announced this way and, for now, those addresses that others
// are about to take over.
func (p *announcePath) target(d *plan.Desired, now time.Time) target {
	want := p.targetOf(d)
	if p.keepsFor != nil {
		return p.withKept(want, d, now)
	}
	if p.withdrawAt == nil {
		return want
	}
	leaving := sortedset.Minus(p.announcedAddrs, want.addrs)
	for a := range p.withdrawAt {
		if _, still := slices.BinarySearchFunc(leaving, a, netip.Addr.Compare); !still {
			delete(p.withdrawAt, a)
		}
	}
	var addrs []netip.Addr
	var prefixes []netip.Prefix
	for _, addr := range leaving {
		host := sortedset.HostPrefix(addr)
		_, alone := slices.BinarySearchFunc(p.announcedPrefixes, host, sortedset.ComparePrefixes)
		if a := d.Address(addr); a == nil || !a.Handover || !alone {
			continue
		}
		until, noticed := p.withdrawAt[addr]
		if !noticed {
			until = now.Add(withdrawDelay)
			p.withdrawAt[addr] = until
		}
		if now.Before(until) {
			addrs, prefixes = append(addrs, addr), append(prefixes, host)
		}
	}
	return target{sortedset.Union(want.prefixes, prefixes, sortedset.ComparePrefixes), sortedset.Union(want.addrs, addrs, netip.Addr.Compare)}
}

// withKept is want, and what is kept.
func (p *announcePath) withKept(want target, d *plan.Desired, now time.Time) target {
	var kept []netip.Addr
	for _, a := range sortedset.Minus(p.announcedAddrs, want.addrs) {
		if p.keepsFor(d, a, now) {
			kept = append(kept, a)
		}
	}
	if len(kept) == 0 {
		return want
	}
	return target{sortedset.Union(want.prefixes, sortedset.HostPrefixes(kept), sortedset.ComparePrefixes), sortedset.Union(want.addrs, kept, netip.Addr.Compare)}
}

// remaining is what of the told remains before the kernel is given what want is for, and
// false when that is all. A prefix that nobody wants stays until another one that does
// the same for one of its addresses is there.
func (p *announcePath) remaining(want target) (target, bool) {
	addrs := sortedset.Intersect(p.announcedAddrs, want.addrs)
	prefixes := sortedset.IntersectFunc(p.announcedPrefixes, want.prefixes, sortedset.ComparePrefixes)
	if len(addrs) == len(p.announcedAddrs) && len(prefixes) == len(p.announcedPrefixes) {
		return target{}, false
	}
	bridges := sortedset.Holding(sortedset.MinusFunc(p.announcedPrefixes, prefixes, sortedset.ComparePrefixes), sortedset.Minus(addrs, sortedset.Covered(addrs, prefixes)))
	prefixes = sortedset.Union(prefixes, bridges, sortedset.ComparePrefixes)
	return target{prefixes, addrs}, len(addrs) != len(p.announcedAddrs) || len(prefixes) != len(p.announcedPrefixes)
}

// record takes down what the network is told after it was asked for want, and returns
// who came and who left. owners says who holds an address that left.
func (p *announcePath) record(announced []netip.Prefix, want target, owners func(netip.Addr) []cluster.Name) (left, came []netip.Addr) {
	if sortedset.Same(announced, p.announcedPrefixes) && sortedset.Same(want.addrs, p.targetAddrs) {
		return nil, nil
	}
	have := sortedset.Covered(want.addrs, announced)
	if stuck := sortedset.MinusFunc(announced, want.prefixes, sortedset.ComparePrefixes); len(stuck) > 0 {
		have = sortedset.Union(have, sortedset.Covered(sortedset.Minus(p.announcedAddrs, want.addrs), stuck), netip.Addr.Compare)
	}
	now := time.Now()
	gone := sortedset.MinusFunc(p.announcedPrefixes, announced, sortedset.ComparePrefixes)
	left, came = sortedset.Minus(p.announcedAddrs, have), sortedset.Minus(have, p.announcedAddrs)
	// An aggregate that was announced for others led here what is new in it, from when
	// it was forwarded; now it is gone, and the address's own route could not be told.
	strayed := sortedset.Minus(sortedset.Covered(sortedset.Minus(want.addrs, p.announcedAddrs), p.announcedPrefixes), have)
	left = sortedset.Union(left, strayed, netip.Addr.Compare)
	for _, a := range left {
		p.lingering[a] = lingeringAddress{until: now.Add(p.linger), owners: owners(a)}
	}
	p.announcedPrefixes, p.announcedAddrs, p.targetAddrs = announced, have, want.addrs
	p.lingerAggregates(gone, now)
	if len(p.lingering) > 0 {
		for _, a := range have {
			delete(p.lingering, a)
		}
	}
	return left, came
}
