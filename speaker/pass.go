package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// An announcer tells the network which addresses this node has.
type announcer interface {
	// Set announces those routes of d whose prefixes are allowed, and goes on with
	// those that are allowed and no longer d's; and no others. allowed is sorted. It
	// does as much as it can and returns what the network is told now, sorted, also
	// when it returns an error.
	Set(ctx context.Context, d *Desired, allowed []netip.Prefix) (told []netip.Prefix, err error)
}

// A forwarder makes the kernel forward what the state says, in one transaction:
// after an error the kernel is as it was.
type forwarder interface {
	Set(ctx context.Context, want proxy.State) error
}

// handover is how long an address stays announced after its last endpoint on
// this node has gone while other nodes have some. They see the same change at the
// same time and announce it too; whoever withdraws first leaves routers without
// any route, and they refuse clients. Until then this node forwards to the others.
const handover = 250 * time.Millisecond

// A pass applies Desireds in an order that keeps I1 and I2. It is not safe for
// concurrent use.
type pass struct {
	announcer announcer
	forwarder forwarder
	// linger is how long an address is forwarded after it left the network.
	linger time.Duration

	// told is what the network is told, as the announcer last said, and have are
	// the addresses that are announced by it: those of asked that it covers, and
	// those that it could not be made to forget.
	told  []netip.Prefix
	have  []netip.Addr
	asked []netip.Addr
	// departed are the addresses that have left the network and may still be
	// asked for. An entry goes when its time is over or the address is announced
	// again, not when it is wanted again: announcing it may fail.
	departed map[netip.Addr]departure
	// released are the aggregates that have left the network, and until when what
	// is in them and nobody's is refused: until then somebody may send to it.
	released map[netip.Prefix]time.Time
	// handing are the addresses that are announced until then although they are
	// no longer wanted, so that others can take over.
	handing map[netip.Addr]time.Time
	// last is the Desired that was forwarded last; it remembers who held an
	// address that nobody holds any more.
	last *Desired

	log *slog.Logger
}

// A departure is an address that left the network.
type departure struct {
	until  time.Time // forwarded until then
	owners []cluster.Name
	// adopted: it was an earlier process that announced it, if anybody did.
	adopted bool
}

func newPass(a announcer, f forwarder, linger time.Duration, log *slog.Logger) *pass {
	return &pass{announcer: a, forwarder: f, linger: linger, departed: map[netip.Addr]departure{}, released: map[netip.Prefix]time.Time{}, handing: map[netip.Addr]time.Time{}, log: log}
}

// adopt takes over addresses that an earlier process forwarded and may have
// announced. Whoever heard of them may send until the given time.
func (p *pass) adopt(addrs []netip.Addr, until time.Time) {
	for _, a := range addrs {
		p.departed[a] = departure{until: until, adopted: true}
	}
}

// settle shortens the time that adopted addresses are kept, once routers are
// known to have forgotten what the earlier process told them.
func (p *pass) settle(until time.Time) {
	for a, d := range p.departed {
		if d.adopted && until.Before(d.until) {
			d.until = until
			p.departed[a] = d
		}
	}
}

// A wish is what shall be announced: these prefixes, for these addresses. Both
// are sorted.
type wish struct {
	prefixes []netip.Prefix
	addrs    []netip.Addr
}

// run makes kernel and network match d as far as it can. trusted says that
// nobody else touched the kernel's table since the last run: when it is false and
// the forwarder fails, nothing is known to be forwarded, so everything is
// withdrawn.
func (p *pass) run(ctx context.Context, d *Desired, trusted bool) error {
	want := p.hand(d, time.Now())
	shrunk := p.shrink(ctx, d, want)
	forwarded := p.forward(ctx, d)
	switch {
	case forwarded == nil:
		return errors.Join(shrunk, p.announce(ctx, d, want))
	case trusted || len(p.told) == 0:
		// What is in the kernel is what was there, perhaps for other endpoints:
		// good enough to go on announcing, not to begin. Before the first
		// success no session is even opened.
		return errors.Join(shrunk, forwarded)
	default:
		return errors.Join(shrunk, forwarded, p.announce(ctx, d, wish{}))
	}
}

// hand returns what d wants announced and, for now, those addresses that others
// are about to take over.
func (p *pass) hand(d *Desired, now time.Time) wish {
	leaving := minus(p.have, d.Announce)
	for a := range p.handing {
		if _, still := slices.BinarySearchFunc(leaving, a, netip.Addr.Compare); !still {
			delete(p.handing, a)
		}
	}
	var addrs []netip.Addr
	var prefixes []netip.Prefix
	for _, addr := range leaving {
		host := netip.PrefixFrom(addr, addr.BitLen())
		_, alone := slices.BinarySearchFunc(p.told, host, comparePrefixes)
		if a := d.Address(addr); a == nil || !a.Handover || !alone {
			continue
		}
		until, noticed := p.handing[addr]
		if !noticed {
			until = now.Add(handover)
			p.handing[addr] = until
		}
		if now.Before(until) {
			addrs, prefixes = append(addrs, addr), append(prefixes, host)
		}
	}
	return wish{union(d.prefixes, prefixes, comparePrefixes), union(d.Announce, addrs, netip.Addr.Compare)}
}

// next is when an address will have lingered or been handed over long enough,
// zero when none will. What is overdue is not waited for but tried again.
func (p *pass) next(now time.Time) (at time.Time) {
	sooner := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, d := range p.departed {
		sooner(d.until)
	}
	for _, until := range p.released {
		sooner(until)
	}
	for _, until := range p.handing {
		sooner(until)
	}
	return at
}

// shrink withdraws what is no longer wanted. It does nothing when all is: an
// announcer that opens sessions shall do so with everything it has to say, not
// with what was said before. A prefix that nobody wants stays until another one
// that does the same for one of its addresses is there. What stays stays as it was:
// a route that attracts more traffic than before, by a greater weight, has to wait
// until the kernel has what that is for.
func (p *pass) shrink(ctx context.Context, d *Desired, want wish) error {
	addrs := intersect(p.have, want.addrs)
	stay := intersectFunc(p.told, want.prefixes, comparePrefixes)
	if len(addrs) == len(p.have) && len(stay) == len(p.told) {
		return nil
	}
	bridges := holding(minusFunc(p.told, stay, comparePrefixes), minus(addrs, covered(addrs, stay)))
	stay = union(stay, bridges, comparePrefixes)
	if len(addrs) == len(p.have) && len(stay) == len(p.told) {
		return nil
	}
	return p.note(d, wish{stay, addrs}, func() ([]netip.Prefix, error) { return p.announcer.Set(ctx, p.last, stay) })
}

// announce makes the announcer announce d as far as it is wanted.
func (p *pass) announce(ctx context.Context, d *Desired, want wish) error {
	return p.note(d, want, func() ([]netip.Prefix, error) { return p.announcer.Set(ctx, d, want.prefixes) })
}

// note has the announcer set, and notes who came and who left.
func (p *pass) note(d *Desired, want wish, set func() ([]netip.Prefix, error)) error {
	told, err := set()
	if err != nil {
		err = fmt.Errorf("announce: %w", err)
	}
	if same(told, p.told) && same(want.addrs, p.asked) {
		return err
	}
	have := covered(want.addrs, told)
	if stuck := minusFunc(told, want.prefixes, comparePrefixes); len(stuck) > 0 {
		have = union(have, covered(minus(p.have, want.addrs), stuck), netip.Addr.Compare)
	}
	now := time.Now()
	gone := minusFunc(p.told, told, comparePrefixes)
	left, came := minus(p.have, have), minus(have, p.have)
	// An aggregate that was announced for others led here what is new in it, from when
	// it was forwarded; now it is gone, and the address's own route could not be told.
	strayed := minus(covered(minus(want.addrs, p.have), p.told), have)
	left = union(left, strayed, netip.Addr.Compare)
	for _, a := range left {
		p.departed[a] = departure{until: now.Add(p.linger), owners: p.owners(d, a)}
	}
	p.told, p.have, p.asked = told, have, want.addrs
	p.release(gone, now)
	p.tell(d, left, came)
	if len(p.departed) > 0 {
		for _, a := range have {
			delete(p.departed, a)
		}
	}
	return err
}

// release notes that prefixes have left the network. An address that had left
// before, while an aggregate that contained it stayed, leaves only now.
func (p *pass) release(gone []netip.Prefix, now time.Time) {
	until := now.Add(p.linger)
	for _, prefix := range p.told {
		delete(p.released, prefix)
	}
	for _, prefix := range gone {
		if prefix.IsSingleIP() {
			continue
		}
		p.released[prefix] = until
		for a, left := range p.departed {
			if prefix.Contains(a) && now.Before(left.until) && left.until.Before(until) {
				left.until = until
				p.departed[a] = left
			}
		}
	}
}

// tell logs a line for each change, and one for all when they are many.
func (p *pass) tell(d *Desired, left, came []netip.Addr) {
	if len(left)+len(came) > 20 {
		p.log.Info("announcements changed", "announced", len(came), "withdrawn", len(left), "now", len(p.have))
		return
	}
	for _, a := range left {
		p.log.Info("withdrawn", "vip", a, "reason", d.why(a))
	}
	for _, a := range came {
		p.log.Info("announced", "vip", a, "reason", d.why(a))
	}
}

// owners says who holds or last held an address.
func (p *pass) owners(d *Desired, addr netip.Addr) []cluster.Name {
	for _, d := range []*Desired{d, p.last} {
		if d == nil {
			continue
		}
		if a := d.Address(addr); a != nil {
			return a.Services
		}
	}
	return p.departed[addr].owners
}

// forward gives the kernel what is wanted, what is still announced although it
// is not wanted, and what lingers.
func (p *pass) forward(ctx context.Context, d *Desired) error {
	now := time.Now()
	state := d.Proxy
	state.VIPs = p.overlay(d, p.extra(d, now))
	state.Owned = with(state.Owned, p.attracted(d, now))
	if err := p.forwarder.Set(ctx, state); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	for a, left := range p.departed {
		if !now.Before(left.until) {
			delete(p.departed, a)
		}
	}
	for prefix, until := range p.released {
		if !now.Before(until) {
			delete(p.released, prefix)
		}
	}
	p.last = d
	return nil
}

// attracted are the aggregates whose traffic may still come although d does not
// announce them.
func (p *pass) attracted(d *Desired, now time.Time) []netip.Prefix {
	var more []netip.Prefix
	for _, prefix := range minusFunc(p.told, d.prefixes, comparePrefixes) {
		if !prefix.IsSingleIP() {
			more = append(more, prefix)
		}
	}
	for prefix, until := range p.released {
		if now.Before(until) {
			more = append(more, prefix)
		}
	}
	return more
}

// extra are the addresses that have to be forwarded although d does not announce
// them, sorted, with their owners.
func (p *pass) extra(d *Desired, now time.Time) []netip.Addr {
	extra := minus(p.have, d.Announce)
	for a, left := range p.departed {
		if now.Before(left.until) {
			extra = append(extra, a)
		}
	}
	slices.SortFunc(extra, netip.Addr.Compare)
	return slices.Compact(extra)
}

// overlay puts lingering addresses over d's, replacing those of the same
// address unless d means to announce it.
func (p *pass) overlay(d *Desired, extra []netip.Addr) []*proxy.VIP {
	vips := d.Proxy.VIPs
	copied := false
	for _, addr := range extra {
		if _, announce := slices.BinarySearchFunc(d.Announce, addr, netip.Addr.Compare); announce {
			continue // wanted again: d's own, whole
		}
		if !copied {
			vips, copied = slices.Clone(vips), true
		}
		vip := d.lingering(addr, p.owners(d, addr))
		i, found := slices.BinarySearchFunc(vips, addr, func(v *proxy.VIP, a netip.Addr) int { return v.Addr.Compare(a) })
		if found {
			vips[i] = vip
		} else {
			vips = slices.Insert(vips, i, vip)
		}
	}
	return vips
}

// covered returns those of addrs that are in one of prefixes; both are sorted. It
// returns addrs itself if all are.
func covered(addrs []netip.Addr, prefixes []netip.Prefix) []netip.Addr {
	var in []netip.Addr
	var reach netip.Addr // the last address of all prefixes that begin before
	for _, a := range addrs {
		for len(prefixes) > 0 && prefixes[0].Addr().Compare(a) <= 0 {
			if last := netipx.PrefixLastIP(prefixes[0]); reach.Less(last) {
				reach = last
			}
			prefixes = prefixes[1:]
		}
		if a.Compare(reach) <= 0 {
			in = append(in, a)
		}
	}
	if len(in) == len(addrs) {
		return addrs
	}
	return in
}

// holding returns those of prefixes that have one of addrs in them; both are sorted.
func holding(prefixes []netip.Prefix, addrs []netip.Addr) []netip.Prefix {
	var some []netip.Prefix
	for _, p := range prefixes {
		i, _ := slices.BinarySearchFunc(addrs, p.Addr(), netip.Addr.Compare)
		if i < len(addrs) && p.Contains(addrs[i]) {
			some = append(some, p)
		}
	}
	return some
}

// intersect returns what is in both of two sorted sets of addresses.
func intersect(a, b []netip.Addr) []netip.Addr { return intersectFunc(a, b, netip.Addr.Compare) }

// minus returns what is in a and not in b, both sorted sets of addresses.
func minus(a, b []netip.Addr) []netip.Addr { return minusFunc(a, b, netip.Addr.Compare) }

func intersectFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if same(a, b) {
		return a
	}
	both := make([]T, 0, min(len(a), len(b)))
	merged(a, b, compare, func(t T, inA, inB bool) {
		if inA && inB {
			both = append(both, t)
		}
	})
	return both
}

func minusFunc[T any](a, b []T, compare func(a, b T) int) []T {
	if same(a, b) {
		return nil
	}
	var only []T
	merged(a, b, compare, func(t T, inA, inB bool) {
		if inA && !inB {
			only = append(only, t)
		}
	})
	return only
}

// union returns what is in either of two sorted sets; a itself if b is empty.
func union[T any](a, b []T, compare func(a, b T) int) []T {
	if len(b) == 0 {
		return a
	}
	either := make([]T, 0, len(a)+len(b))
	merged(a, b, compare, func(t T, _, _ bool) { either = append(either, t) })
	return either
}

// merged walks two sorted sets at once.
func merged[T any](a, b []T, compare func(a, b T) int, visit func(t T, inA, inB bool)) {
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = compare(a[0], b[0])
		}
		switch {
		case order < 0:
			visit(a[0], true, false)
			a = a[1:]
		case order > 0:
			visit(b[0], false, true)
			b = b[1:]
		default:
			visit(a[0], true, true)
			a, b = a[1:], b[1:]
		}
	}
}
