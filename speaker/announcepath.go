package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// An announcer announces addresses to the network by one protocol.
type announcer interface {
	// Set announces the routes of d with allowed prefixes, keeps announced routes with
	// allowed prefixes that d lacks, and withdraws all others. Also after an error, Set
	// returns every prefix that is announced now or may be before the next Set.
	Set(ctx context.Context, d *plan.Desired,
		allowed sortedset.Set[netip.Prefix]) (announced sortedset.Set[netip.Prefix], err error)
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
	announcedPrefixes sortedset.Set[netip.Prefix]
	announcedAddrs    sortedset.Set[netip.Addr]
	targetAddrs       sortedset.Set[netip.Addr]
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
	// delayed are the addresses whose withdrawal BGP delays, or has delayed, and until when.
	delayed map[netip.Addr]time.Time
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

func newAnnouncePath(protocol string, a announcer, linger time.Duration,
	targetOf func(*plan.Desired) target) *announcePath {
	return &announcePath{
		protocol: protocol, announcer: a, linger: linger, targetOf: targetOf,
		lingeringAggregates: map[netip.Prefix]time.Time{},
	}
}

// A target is what must be announced: these prefixes, for these addresses.
type target struct {
	prefixes sortedset.Set[netip.Prefix]
	addrs    sortedset.Set[netip.Addr]
}

// target returns what d wants announced by this path, and the addresses that stay for now.
func (p *announcePath) target(d *plan.Desired, now time.Time) target {
	want := p.targetOf(d)
	if p.keeps == nil {
		return want
	}
	kept := p.keeps(d, sortedset.Only(p.announcedAddrs, want.addrs, netip.Addr.Compare), now)
	return target{
		sortedset.With(want.prefixes, sortedset.HostPrefixes(kept), sortedset.ComparePrefixes),
		sortedset.With(want.addrs, kept, netip.Addr.Compare),
	}
}

// delays is keeps of BGP: it delays the withdrawal of addresses with routes of their own.
func (p *announcePath) delays(d *plan.Desired, unwanted []netip.Addr, now time.Time) (kept []netip.Addr) {
	delayed := p.delayed
	p.delayed = nil
	for _, a := range unwanted {
		_, alone := sortedset.Get(p.announcedPrefixes, sortedset.HostPrefix(a), sortedset.ComparePrefixes)
		decided := d.Address(a)
		stays := alone && decided != nil && decided.Handover
		until, again := delayed[a]
		switch {
		case !stays && !again:
			continue
		case !again:
			until = now.Add(withdrawDelay)
		}
		if p.delayed == nil {
			p.delayed = map[netip.Addr]time.Time{}
		}
		if p.delayed[a] = until; stays && now.Before(until) {
			kept = append(kept, a)
		}
	}
	return kept
}

func compareAddress(d *plan.Address, a netip.Addr) int { return d.Addr.Compare(a) }

func compareAddresses(a, b *plan.Address) int { return a.Addr.Compare(b.Addr) }

// remaining returns what stays announced until the kernel has what want needs, and false if
// that is everything. An unwanted prefix stays until a wanted one covers the same address.
func (p *announcePath) remaining(want target) (target, bool) {
	unwanted, newAddrs := sortedset.Changes(p.announcedAddrs, want.addrs, netip.Addr.Compare)
	gone, newPrefixes := sortedset.Changes(p.announcedPrefixes, want.prefixes, sortedset.ComparePrefixes)
	if len(unwanted)+len(gone) == 0 {
		return target{}, false // as nearly always
	}
	// If nothing new is wanted, the sets are those of want, and growing has nothing to do.
	stay := want
	if len(newAddrs) > 0 {
		stay.addrs = sortedset.Without(p.announcedAddrs, unwanted, netip.Addr.Compare)
	}
	if len(newPrefixes) > 0 {
		stay.prefixes = sortedset.Without(p.announcedPrefixes, gone, sortedset.ComparePrefixes)
	}
	bridges := sortedset.Holding(gone, sortedset.Uncovered(stay.addrs, stay.prefixes))
	stay.prefixes = sortedset.With(stay.prefixes, bridges, sortedset.ComparePrefixes)
	return stay, stay.addrs.Len() != p.announcedAddrs.Len() || stay.prefixes.Len() != p.announcedPrefixes.Len()
}

// withoutNew returns the target without prefixes that are not announced yet and overlap a prefix of
// hold.
func (p *announcePath) withoutNew(want target, hold []netip.Prefix) target {
	if len(hold) == 0 {
		return want
	}
	overlaps := func(n netip.Prefix) bool { return slices.ContainsFunc(hold, n.Overlaps) }
	prefixes := sortedset.Only(want.prefixes, p.announcedPrefixes, sortedset.ComparePrefixes)
	prefixes = slices.DeleteFunc(prefixes, func(n netip.Prefix) bool { return !overlaps(n) })
	addrs := sortedset.Only(want.addrs, p.announcedAddrs, netip.Addr.Compare)
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !overlaps(sortedset.HostPrefix(a)) })
	return target{sortedset.Without(want.prefixes, prefixes, sortedset.ComparePrefixes),
		sortedset.Without(want.addrs, addrs, netip.Addr.Compare)}
}

// record records what is announced after a call with want, and returns which addresses were
// withdrawn and which were added. services returns the Services of a withdrawn address.
func (p *announcePath) record(announced sortedset.Set[netip.Prefix], want target,
	services func(netip.Addr) []cluster.Name) (left, came []netip.Addr) {
	if announced.Same(p.announcedPrefixes) && want.addrs.Same(p.targetAddrs) {
		return nil, nil
	}
	have := sortedset.Without(want.addrs, sortedset.Uncovered(want.addrs, announced), netip.Addr.Compare)
	if stuck := sortedset.Only(announced, want.prefixes, sortedset.ComparePrefixes); len(stuck) > 0 {
		unwanted := sortedset.Only(p.announcedAddrs, want.addrs, netip.Addr.Compare)
		bare := sortedset.Uncovered(sortedset.AddrSet(unwanted...), sortedset.PrefixSet(stuck...))
		have = sortedset.With(have, sortedset.Minus(unwanted, bare), netip.Addr.Compare)
	}
	now := time.Now()
	gone := sortedset.Only(p.announcedPrefixes, announced, sortedset.ComparePrefixes)
	left, came = sortedset.Changes(p.announcedAddrs, have, netip.Addr.Compare)
	if !have.Same(want.addrs) {
		left = sortedset.Union(left, p.strayed(want, have))
	}
	p.lingering = p.lingering.with(left, func(a netip.Addr) *lingeringAddress {
		return &lingeringAddress{addr: a, until: now.Add(p.linger), services: services(a)}
	})
	p.announcedPrefixes, p.announcedAddrs, p.targetAddrs = announced, have, want.addrs
	p.lingerAggregates(gone, now)
	p.lingering = p.lingering.without(have)
	return left, came
}

// strayed returns the new addresses of want that are not announced after all, to which an aggregate of
// other addresses has attracted traffic since they were forwarded.
func (p *announcePath) strayed(want target, have sortedset.Set[netip.Addr]) []netip.Addr {
	missing := sortedset.Only(want.addrs, have, netip.Addr.Compare)
	others := slices.DeleteFunc(missing, func(a netip.Addr) bool { return sortedset.HasAddr(p.announcedAddrs, a) })
	bare := sortedset.Uncovered(sortedset.AddrSet(others...), p.announcedPrefixes)
	return sortedset.Minus(others, bare)
}
