package proxy

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
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
func (o *forwardOpener) plan(want State, changed []state.VipChange, look bool) {
	same := o.settled && slices.Equal(o.owned, want.Owned) &&
		!slices.ContainsFunc(changed, func(c state.VipChange) bool { return iptables.StraysFrom(c, want.Owned) })
	o.settled = false
	o.due = o.due || look
	if same {
		return
	}
	prefixes := iptables.ForwardPrefixes(want)
	o.due = o.due || !slices.Equal(prefixes, o.prefixes)
	o.owned, o.prefixes = want.Owned, prefixes
}

// openForward opens FORWARD if that is due. An error stops nothing else: it is
// logged, and retried.
func (p *Proxy) openForward(ctx context.Context) {
	o := &p.forward
	o.settled = true
	if !o.due || !o.failed.IsZero() && time.Since(o.failed) < forwardRetry {
		return
	}
	opened, changed, err := iptables.OpenForward(ctx, o.prefixes)
	p.monitor.SetClosed(iptables.ClosedBy(err))
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
