package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// An announcer tells the network which addresses this node has.
type announcer interface {
	// Set announces those addresses of d that are in allowed, and no others.
	// allowed is sorted. It does as much as it can and returns what the network
	// is told now, sorted, also when it returns an error.
	Set(ctx context.Context, d *Desired, allowed []netip.Addr) (have []netip.Addr, err error)
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

	// have is what the network is told, as the announcer last said.
	have []netip.Addr
	// departed are the addresses that have left the network and may still be
	// asked for. An entry goes when its time is over or the address is announced
	// again, not when it is wanted again: announcing it may fail.
	departed map[netip.Addr]departure
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
	return &pass{announcer: a, forwarder: f, linger: linger, departed: map[netip.Addr]departure{}, handing: map[netip.Addr]time.Time{}, log: log}
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

// run makes kernel and network match d as far as it can. trusted says that
// nobody else touched the kernel's table since the last run: when it is false and
// the forwarder fails, nothing is known to be forwarded, so everything is
// withdrawn.
func (p *pass) run(ctx context.Context, d *Desired, trusted bool) error {
	keep := d.keeping(p.hand(d, time.Now()))
	shrunk := p.shrink(ctx, keep)
	forwarded := p.forward(ctx, d)
	switch {
	case forwarded == nil:
		return errors.Join(shrunk, p.announce(ctx, keep, keep.Announce))
	case trusted || len(p.have) == 0:
		// What is in the kernel is what was there, perhaps for other endpoints:
		// good enough to go on announcing, not to begin. Before the first
		// success no session is even opened.
		return errors.Join(shrunk, forwarded)
	default:
		return errors.Join(shrunk, forwarded, p.announce(ctx, keep, nil))
	}
}

// hand returns the addresses that stay announced for now although d does not
// want it, sorted.
func (p *pass) hand(d *Desired, now time.Time) []netip.Addr {
	leaving := minus(p.have, d.Announce)
	for a := range p.handing {
		if _, still := slices.BinarySearchFunc(leaving, a, netip.Addr.Compare); !still {
			delete(p.handing, a)
		}
	}
	var keep []netip.Addr
	for _, addr := range leaving {
		if a := d.Address(addr); a == nil || !a.Handover {
			continue
		}
		until, noticed := p.handing[addr]
		if !noticed {
			until = now.Add(handover)
			p.handing[addr] = until
		}
		if now.Before(until) {
			keep = append(keep, addr)
		}
	}
	return keep
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
	for _, until := range p.handing {
		sooner(until)
	}
	return at
}

// shrink withdraws what is no longer wanted. It does nothing when all is: an
// announcer that opens sessions shall do so with everything it has to say, not
// with what was said before.
func (p *pass) shrink(ctx context.Context, d *Desired) error {
	keep := intersect(p.have, d.Announce)
	if len(keep) == len(p.have) {
		return nil
	}
	return p.announce(ctx, d, keep)
}

// announce sets the announcer and notes who came and who left.
func (p *pass) announce(ctx context.Context, d *Desired, allowed []netip.Addr) error {
	have, err := p.announcer.Set(ctx, d, allowed)
	if err != nil {
		err = fmt.Errorf("announce: %w", err)
	}
	if same(have, p.have) {
		return err
	}
	until := time.Now().Add(p.linger)
	left, came := minus(p.have, have), minus(have, p.have)
	for _, a := range left {
		p.departed[a] = departure{until: until, owners: p.owners(d, a)}
	}
	p.have = have
	p.tell(d, left, came)
	if len(p.departed) > 0 {
		for _, a := range have {
			delete(p.departed, a)
		}
	}
	return err
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
	if err := p.forwarder.Set(ctx, state); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	for a, left := range p.departed {
		if !now.Before(left.until) {
			delete(p.departed, a)
		}
	}
	p.last = d
	return nil
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

// intersect returns what is in both of two sorted sets.
func intersect(a, b []netip.Addr) []netip.Addr {
	if same(a, b) {
		return a
	}
	both := make([]netip.Addr, 0, min(len(a), len(b)))
	merged(a, b, func(addr netip.Addr, inA, inB bool) {
		if inA && inB {
			both = append(both, addr)
		}
	})
	return both
}

// minus returns what is in a and not in b, both sorted sets.
func minus(a, b []netip.Addr) []netip.Addr {
	if same(a, b) {
		return nil
	}
	var only []netip.Addr
	merged(a, b, func(addr netip.Addr, inA, inB bool) {
		if inA && !inB {
			only = append(only, addr)
		}
	})
	return only
}

// merged walks two sorted sets at once.
func merged(a, b []netip.Addr, visit func(addr netip.Addr, inA, inB bool)) {
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = a[0].Compare(b[0])
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
