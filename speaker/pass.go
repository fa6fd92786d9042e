package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/redirect"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// A forwarder programs the kernel in one transaction: after an error the kernel is as it
// was. It is a [proxy.Proxy], or a simulation in tests, which makes calls fail at any step.
type forwarder interface {
	Set(ctx context.Context, want proxy.State) error
	// Intact reports whether the kernel still has what the last successful Set wrote.
	Intact() proxy.Integrity
	// Blockade returns the flows that certainly fail on this node, as of the last Set.
	Blockade() *obstacle.Blockade
	// Unprepared returns sorted prefixes whose new addresses must not be announced yet: some
	// preparations take longer than Set.
	Unprepared() []netip.Prefix
}

// errBlockade means that the Blockade has changed since the decision about d.
var errBlockade = errors.New("the flows that obstacles of this node block have changed")

// A pass applies Desired values in an order that keeps I1 and I2. It is not safe for
// concurrent use.
type pass struct {
	forwarder forwarder
	paths     []*announcePath
	// last is what the kernel forwards. It has the Services of addresses that no Service
	// holds now.
	last *plan.Desired
	// uplinks are the interfaces by which external clients arrive, for the fast path.
	uplinks []string
	// redirects sends established connections to the other owners of addresses; nil: none.
	redirects *redirect.Redirects

	metrics *metrics // nil: none
	log     *slog.Logger
}

func newPass(f forwarder, log *slog.Logger, paths ...*announcePath) *pass {
	return &pass{forwarder: f, paths: paths, log: log}
}

// run makes the kernel and the network match d as far as it can. If the forwarder returns
// an error while the kernel's table is not intact, no address is known to be forwarded, and
// run withdraws all of them. No other error withdraws anything.
func (p *pass) run(ctx context.Context, d *plan.Desired) error {
	now := time.Now()
	wants := make([]target, len(p.paths))
	var shrunk []error
	for i, path := range p.paths {
		wants[i] = path.target(d, now)
		shrunk = append(shrunk, p.shrink(ctx, path, d, wants[i]))
	}
	began := p.metrics.observePhase(phaseShrink, now)
	forwarded := p.forward(ctx, d)
	began = p.metrics.observePhase(phaseForward, began)
	errs := append(shrunk, forwarded)
	// Call Intact after Set, which may have repaired the table.
	table := p.forwarder.Intact()
	var refused *proxy.Refused
	if forwarded != nil && !table.Intact && !errors.As(forwarded, &refused) {
		errs = append(errs, fmt.Errorf("nothing is announced: the rules in the kernel are not as written since %s: %s",
			table.Since.Format(time.TimeOnly), table.Reason))
	}
	switch {
	case forwarded == nil && d.Inputs != nil && d.Inputs.Blockade() != p.forwarder.Blockade():
		// An address whose flows fail must not be announced, not even for a moment.
		return errors.Join(append(errs, errBlockade)...)
	case forwarded == nil:
	case errors.As(forwarded, &refused):
		// The kernel has all other addresses. The caller decides again without the refused
		// ones.
		return errors.Join(errs...)
	case table.Intact || !p.announcing():
		// The kernel still forwards, perhaps to old endpoints: announcements stay, and new
		// ones must wait. Before the first success no session is opened.
		return errors.Join(errs...)
	default:
		clear(wants)
	}
	hold := p.forwarder.Unprepared()
	for i, path := range p.paths {
		errs = append(errs, p.announce(ctx, path, d, path.withoutNew(wants[i], hold)))
	}
	p.metrics.observePhase(phaseGrow, began)
	return errors.Join(errs...)
}

// announcing reports whether any address is announced.
func (p *pass) announcing() bool {
	return slices.ContainsFunc(p.paths, func(path *announcePath) bool { return path.announcedPrefixes.Len() > 0 })
}

// next returns when lingering or a delayed withdrawal ends, zero if neither is pending.
// Overdue work is retried instead.
func (p *pass) next(now time.Time) time.Time {
	var first time.Time
	for _, path := range p.paths {
		first = earliest(now, first, path.next(now))
	}
	return first
}

// shrink withdraws what is no longer wanted. If nothing is, it does not call the announcer,
// which opens sessions and must do so with all routes. Routes that stay keep their old
// attributes: a higher weight attracts more traffic, and must wait for the kernel.
func (p *pass) shrink(ctx context.Context, path *announcePath, d *plan.Desired, want target) error {
	stay, less := path.remaining(want)
	if !less {
		return nil
	}
	announced, err := path.announcer.Set(ctx, p.last, stay.prefixes)
	// An unwanted prefix that stays for an address still attracts traffic to the others in it: they
	// count as announced until it is withdrawn.
	return p.record(path, d, announced, target{want.prefixes, stay.addrs}, err)
}

// announce announces the part of d that is wanted.
func (p *pass) announce(ctx context.Context, path *announcePath, d *plan.Desired, want target) error {
	announced, err := path.announcer.Set(ctx, d, want.prefixes)
	return p.record(path, d, announced, want, err)
}

// record records and logs what an announcer did.
func (p *pass) record(path *announcePath, d *plan.Desired, announced sortedset.Set[netip.Prefix], want target,
	err error) error {
	left, came := path.record(announced, want, func(a netip.Addr) []cluster.Name { return p.services(d, a) })
	p.logChanges(path, d, left, came)
	if err != nil {
		return &announceError{path.protocol, err}
	}
	return nil
}

// An announceError is the error of one announce path.
type announceError struct {
	protocol string
	err      error
}

func (e *announceError) Error() string { return "announce by " + e.protocol + ": " + e.err.Error() }

func (e *announceError) Unwrap() error { return e.err }

// beyondL2 reports whether err has errors of other origins than announcing over L2.
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

// logChanges logs one line for each change, and one line in total for many.
func (p *pass) logChanges(path *announcePath, d *plan.Desired, left, came []netip.Addr) {
	if len(left)+len(came) > 20 {
		p.log.Info("announcements changed", "protocol", path.protocol, "begun", len(came), "withdrawn", len(left),
			"now", path.announcedAddrs.Len())
		return
	}
	for _, a := range left {
		p.log.Info("withdrawn", "protocol", path.protocol, "vip", a, "reason", d.Why(a, path.protocol))
	}
	for _, a := range came {
		// Not "announced": the session may be down, or an address not held yet.
		p.log.Info("announcement begins", "protocol", path.protocol, "vip", a, "reason", d.Why(a, path.protocol))
	}
}

// services returns the Services that hold an address, or held it last.
func (p *pass) services(d *plan.Desired, addr netip.Addr) []cluster.Name {
	for _, d := range []*plan.Desired{d, p.last} {
		if d == nil {
			continue
		}
		if a := d.Address(addr); a != nil {
			return a.Services
		}
	}
	for _, path := range p.paths {
		if l := path.lingering.find(addr); l != nil && len(l.services) > 0 {
			return l.services
		}
	}
	return nil
}

// forward programs what is wanted, what is still announced, and what lingers.
func (p *pass) forward(ctx context.Context, d *plan.Desired) error {
	now := time.Now()
	state := d.Proxy
	state.Outward = p.uplinks
	if p.redirects != nil {
		state.Redirects = p.redirects.Rules
	}
	state.Taking = p.taking(d)
	var stillUsed []netip.Addr
	for _, path := range p.paths {
		stillUsed = sortedset.Union(stillUsed, path.stillUsed(d, now))
		if more := path.attractedAggregates(d, now); len(more) > 0 {
			state.Owned = sortedset.RemoveAddrs(sortedset.AddPrefixes(state.Owned, more), d.Snapshot.Unclaimed)
		}
	}
	state.VIPs = p.withLingering(d, stillUsed)
	if err := p.forwarder.Set(ctx, state); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	for _, path := range p.paths {
		path.dropExpired(now)
	}
	p.last = d
	return nil
}

// taking returns the addresses that this node is about to answer for over L2, sorted.
func (p *pass) taking(d *plan.Desired) []netip.Addr {
	for _, path := range p.paths {
		if path.protocol == "l2" {
			return sortedset.Only(d.Answered, path.announcedAddrs, netip.Addr.Compare)
		}
	}
	return nil
}

// withLingering returns d's VIPs with lingering addresses. These replace VIPs of the same
// address that d does not announce.
func (p *pass) withLingering(d *plan.Desired, extra []netip.Addr) proxy.VIPs {
	var lingering []*proxy.VIP
	for _, addr := range extra {
		vip := d.Proxy.VIP(addr)
		if vip != nil && plan.LingersAsItIs(vip) || sortedset.HasAddr(d.Announce, addr) {
			continue // d's VIP is complete, also if it is wanted again
		}
		lingering = append(lingering, d.Lingering(addr, func() []cluster.Name { return p.services(d, addr) }))
	}
	return sortedset.With(d.Proxy.VIPs, d.Fit(lingering), proxy.CompareVIPs)
}
