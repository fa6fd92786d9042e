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
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A forwarder makes the kernel forward what the state says, in one transaction:
// after an error the kernel is as it was.
type forwarder interface {
	Set(ctx context.Context, want proxy.State) error
	// Intact says whether the kernel still has what the last Set that succeeded wrote.
	Intact() proxy.Integrity
}

// A pass applies Desireds in an order that keeps I1 and I2. It is not safe for
// concurrent use.
type pass struct {
	forwarder forwarder
	paths     []*announcePath
	// last is the Desired that was forwarded last; it remembers who held an
	// address that nobody holds any more.
	last *plan.Desired
	// uplinks are the interfaces that clients outside come in by, for the fast path.
	uplinks []string
	// redirects is what is handed on to the nodes that answered for it before; nil: nothing.
	redirects *redirects

	log *slog.Logger
}

func newPass(f forwarder, log *slog.Logger, ways ...*announcePath) *pass {
	return &pass{forwarder: f, paths: ways, log: log}
}

// run makes kernel and network match d as far as it can. If the forwarder fails while the
// kernel's table is not intact, nothing is known to be forwarded, so everything is
// withdrawn. Nothing else that fails withdraws anything.
func (p *pass) run(ctx context.Context, d *plan.Desired) error {
	now := time.Now()
	wants := make([]target, len(p.paths))
	var shrunk []error
	for i, path := range p.paths {
		wants[i] = path.target(d, now)
		shrunk = append(shrunk, p.shrink(ctx, path, d, wants[i]))
	}
	forwarded := p.forward(ctx, d)
	errs := append(shrunk, forwarded)
	// Asked after the Set: it may have repaired the table, or found that it needs no repair.
	table := p.forwarder.Intact()
	var refused *proxy.Refused
	if forwarded != nil && !table.Intact && !errors.As(forwarded, &refused) {
		errs = append(errs, fmt.Errorf("nothing is announced: the rules in the kernel are not as written since %s: %s", table.Since.Format(time.TimeOnly), table.Reason))
	}
	switch {
	case forwarded == nil:
	case errors.As(forwarded, &refused):
		// All others are in the kernel. Nothing is announced until a Desired comes that
		// knows of the refusal.
		return errors.Join(errs...)
	case table.Intact || !p.announcing():
		// What is in the kernel is what was there, perhaps for other endpoints:
		// good enough to go on announcing, not to begin. Before the first
		// success no session is even opened.
		return errors.Join(errs...)
	default:
		clear(wants)
	}
	for i, path := range p.paths {
		errs = append(errs, p.announce(ctx, path, d, wants[i]))
	}
	return errors.Join(errs...)
}

// announcing says whether the network is told anything.
func (p *pass) announcing() bool {
	return slices.ContainsFunc(p.paths, func(path *announcePath) bool { return len(path.announcedPrefixes) > 0 })
}

// next is when an address will have lingered or been handed over long enough,
// zero when none will. What is overdue is not waited for but tried again.
func (p *pass) next(now time.Time) time.Time {
	var times []time.Time
	for _, path := range p.paths {
		times = append(times, path.deadlines()...)
	}
	return earliest(now, times...)
}

// shrink withdraws what is no longer wanted. It does nothing when all is: an
// announcer that opens sessions shall do so with everything it has to say, not
// with what was said before. What stays stays as it was: a route that attracts more
// traffic than before, by a greater weight, has to wait until the kernel has what
// that is for.
func (p *pass) shrink(ctx context.Context, path *announcePath, d *plan.Desired, want target) error {
	stay, less := path.remaining(want)
	if !less {
		return nil
	}
	announced, err := path.announcer.Set(ctx, p.last, stay.prefixes)
	return p.record(path, d, announced, stay, err)
}

// announce makes the announcer announce d as far as it is wanted.
func (p *pass) announce(ctx context.Context, path *announcePath, d *plan.Desired, want target) error {
	announced, err := path.announcer.Set(ctx, d, want.prefixes)
	return p.record(path, d, announced, want, err)
}

// record takes down what an announcer said, and logs who came and who left.
func (p *pass) record(path *announcePath, d *plan.Desired, announced []netip.Prefix, want target, err error) error {
	left, came := path.record(announced, want, func(a netip.Addr) []cluster.Name { return p.owners(d, a) })
	p.logChanges(path, d, left, came)
	if err != nil {
		return &announceError{path.protocol, err}
	}
	return nil
}

// An announceError is what one way to announce could not do.
type announceError struct {
	protocol string
	err      error
}

func (e *announceError) Error() string { return "announce by " + e.protocol + ": " + e.err.Error() }

func (e *announceError) Unwrap() error { return e.err }

// beyondL2 says whether there is more in err than what L2 could not do.
func beyondL2(err error) bool {
	if err == nil {
		return false
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(joined.Unwrap(), beyondL2)
	}
	var failed *announceError
	return !errors.As(err, &failed) || failed.protocol != "l2"
}

// logChanges logs a line for each change, and one for all when they are many.
func (p *pass) logChanges(path *announcePath, d *plan.Desired, left, came []netip.Addr) {
	if len(left)+len(came) > 20 {
		p.log.Info("announcements changed", "protocol", path.protocol, "announced", len(came), "withdrawn", len(left), "now", len(path.announcedAddrs))
		return
	}
	for _, a := range left {
		p.log.Info("withdrawn", "protocol", path.protocol, "vip", a, "reason", d.Why(a, path.protocol))
	}
	for _, a := range came {
		p.log.Info("announced", "protocol", path.protocol, "vip", a, "reason", d.Why(a, path.protocol))
	}
}

// owners says who holds or last held an address.
func (p *pass) owners(d *plan.Desired, addr netip.Addr) []cluster.Name {
	for _, d := range []*plan.Desired{d, p.last} {
		if d == nil {
			continue
		}
		if a := d.Address(addr); a != nil {
			return a.Services
		}
	}
	for _, path := range p.paths {
		if left := path.lingering[addr]; len(left.owners) > 0 {
			return left.owners
		}
	}
	return nil
}

// forward gives the kernel what is wanted, what is still announced although it
// is not wanted, and what lingers.
func (p *pass) forward(ctx context.Context, d *plan.Desired) error {
	now := time.Now()
	state := d.Proxy
	state.Outward = p.uplinks
	if p.redirects != nil {
		state.Redirects, state.Nodes = p.redirects.rules, p.redirects.nodes
	}
	state.Taking = p.taking(d)
	state.VIPs = p.withLingering(d, p.stillUsed(d, now))
	for _, path := range p.paths {
		state.Owned = sortedset.AddPrefixes(state.Owned, path.attractedAggregates(d, now))
	}
	if err := p.forwarder.Set(ctx, state); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	for _, path := range p.paths {
		path.dropExpired(now)
	}
	p.last = d
	return nil
}

// taking are the addresses that this node is about to answer for over L2, sorted.
func (p *pass) taking(d *plan.Desired) []netip.Addr {
	i := slices.IndexFunc(p.paths, func(path *announcePath) bool { return path.protocol == "l2" })
	if i < 0 {
		return nil
	}
	return sortedset.Minus(d.Answered, p.paths[i].announcedAddrs)
}

// stillUsed are the addresses that have to be forwarded although d does not announce
// them, sorted: they are announced still, or whoever used them may not have heard.
func (p *pass) stillUsed(d *plan.Desired, now time.Time) (extra []netip.Addr) {
	for _, path := range p.paths {
		extra = append(extra, sortedset.Minus(path.announcedAddrs, d.Announce)...)
		extra = append(extra, path.lingeringAddrs(now)...)
	}
	slices.SortFunc(extra, netip.Addr.Compare)
	return slices.Compact(extra)
}

// withLingering puts lingering addresses over d's, replacing those of the same
// address unless d means to announce it.
func (p *pass) withLingering(d *plan.Desired, extra []netip.Addr) []*proxy.VIP {
	vips := d.Proxy.VIPs
	copied := false
	for _, addr := range extra {
		if _, announce := slices.BinarySearchFunc(d.Announce, addr, netip.Addr.Compare); announce {
			continue // wanted again: d's own, whole
		}
		if !copied {
			vips, copied = slices.Clone(vips), true
		}
		vip := d.Lingering(addr, p.owners(d, addr))
		i, found := slices.BinarySearchFunc(vips, addr, func(v *proxy.VIP, a netip.Addr) int { return v.Addr.Compare(a) })
		if found {
			vips[i] = vip
		} else {
			vips = slices.Insert(vips, i, vip)
		}
	}
	return vips
}
