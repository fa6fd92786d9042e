package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// forwardRetry is the least time between two attempts to open FORWARD.
const forwardRetry = 5 * time.Second

// A forwardOpener keeps the chain FORWARD of iptables open for our flows, on nodes where its
// policy is to drop, as Docker sets it. It reads the chain only when something may have
// changed, and costs a Set nothing otherwise.
type forwardOpener struct {
	owned    []netip.Prefix // of the last plan
	prefixes []netip.Prefix // whose flows must pass, sorted
	settled  bool           // the State of the last plan was set
	due      bool
	failed   time.Time // the last time; zero: it did not fail
	retry    *time.Timer
}

// plan records which flows must pass. changed are the VIPs that differ from those of the
// last State that was set.
func (o *forwardOpener) plan(want State, changed []vipChange, look bool) {
	same := o.settled && slices.Equal(o.owned, want.Owned) &&
		!slices.ContainsFunc(changed, func(c vipChange) bool { return c.strays(want.Owned) })
	o.settled = false
	o.due = o.due || look
	if same {
		return
	}
	prefixes := forwardPrefixes(want)
	o.due = o.due || !slices.Equal(prefixes, o.prefixes)
	o.owned, o.prefixes = want.Owned, prefixes
}

// strays says whether the address is in none of the prefixes, as one of a pool that
// was deleted and that still lingers.
func (c vipChange) strays(owned []netip.Prefix) bool {
	return c.have != nil && !containsAddr(owned, c.have.Addr) || c.want != nil && !containsAddr(owned, c.want.Addr)
}

// forwardPrefixes are the addresses whose flows must pass. One prefix for a pool
// is less for every packet to walk along than its VIPs, and changes less often.
func forwardPrefixes(want State) []netip.Prefix {
	all := slices.Clone(want.Owned)
	for _, v := range want.VIPs {
		if !containsAddr(want.Owned, v.Addr) {
			all = append(all, netip.PrefixFrom(v.Addr, v.Addr.BitLen()))
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// openForward opens FORWARD if that is due. An error stops nothing else: it is
// logged, and retried.
func (p *Proxy) openForward(ctx context.Context) {
	o := &p.forward
	o.settled = true
	if !o.due || !o.failed.IsZero() && time.Since(o.failed) < forwardRetry {
		return
	}
	opened, changed, err := openForward(ctx, o.prefixes)
	if len(changed) > 0 {
		p.log.InfoContext(ctx, "changed FORWARD of iptables", "reason", changedForward(changed, opened))
	}
	if before := p.record.forward(opened, err); err != nil && before != err.Error() {
		p.log.WarnContext(ctx, "FORWARD of iptables may drop traffic to our addresses", "err", err)
	}
	o.due, o.failed = false, time.Time{}
	if err != nil {
		o.due, o.failed = true, time.Now()
		o.retry = time.AfterFunc(forwardRetry, p.watch.poke)
	}
}

func changedForward(changed, opened []string) string {
	var reasons []string
	for _, name := range changed {
		reason := name + " no longer drops"
		if slices.Contains(opened, name) {
			reason = name + " drops what it does not know"
		}
		reasons = append(reasons, reason)
	}
	return strings.Join(reasons, "; ")
}

// stop ends the attempts.
func (o *forwardOpener) stop() {
	if o.retry != nil {
		o.retry.Stop()
	}
}

// openForward makes every iptables of this namespace accept the flows to the
// prefixes where it would drop them. It returns the names of the iptables that have a
// rule for that, and of the changed ones. With no prefixes it removes our chain and rules.
func openForward(ctx context.Context, prefixes []netip.Prefix) (opened, changed []string, err error) {
	var errs []error
	for _, i := range allIPTables {
		open, wrote, err := i.open(ctx, prefixes)
		if err != nil {
			errs = append(errs, err)
		}
		if open {
			opened = append(opened, i.name)
		}
		if wrote {
			changed = append(changed, i.name)
		}
	}
	return opened, changed, errors.Join(errs...)
}

// open says whether our rule is there afterwards, and whether anything was
// written.
func (i iptables) open(ctx context.Context, prefixes []netip.Prefix) (open, wrote bool, err error) {
	if has, err := i.has(); !has || err != nil {
		return false, false, err
	}
	prefixes = slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != i.ipv6 })
	f, err := i.filter(ctx)
	if err != nil {
		return false, false, err
	}
	script := planForward(f, prefixes)
	if script == "" {
		return f.chain, false, nil
	}
	if err := i.restore(ctx, script); err != nil {
		return f.chain, false, err
	}
	if f, err = i.filter(ctx); err != nil {
		return false, true, err
	}
	if planForward(f, prefixes) != "" {
		// Without this an iptables that shows rules in other words would have us
		// write them over and over.
		return f.chain, true, fmt.Errorf("%s: shows other rules than were written", i.name)
	}
	return f.chain, true, nil
}

func (i iptables) filter(ctx context.Context) (filter, error) {
	save, err := i.save(ctx)
	return parseFilter(save), err
}
