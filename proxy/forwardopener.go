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
// changed, in a preparation.
type forwardOpener struct {
	owned    []netip.Prefix // of the last plan, as are vips
	vips     VIPs
	prefixes []netip.Prefix // whose flows must pass, sorted
	opened   []netip.Prefix // whose flows pass, since the last attempt that succeeded
	due      bool
	failed   time.Time // the last time; zero: it did not fail
	retry    *time.Timer
}

// plan records which flows must pass once want is set.
func (f *forwardOpener) plan(want State, look bool) {
	outside := func(c state.VIPChange) bool { return iptables.OutsidePrefixes(c, want.Owned) }
	same := slices.Equal(f.owned, want.Owned) && !slices.ContainsFunc(state.DiffVIPs(f.vips, want.VIPs), outside)
	f.vips = want.VIPs
	f.due = f.due || look
	if same {
		return
	}
	prefixes := iptables.ForwardPrefixes(want)
	f.due = f.due || !slices.Equal(prefixes, f.prefixes)
	f.owned, f.prefixes = want.Owned, prefixes
}

// begin reports whether FORWARD must be opened now, and counts that as begun.
func (f *forwardOpener) begin() bool {
	if !f.due || !f.failed.IsZero() && time.Since(f.failed) < forwardRetry {
		return false
	}
	f.due = false
	return true
}

// finishForward records an attempt to open FORWARD. An error stops nothing else: it is
// logged, and retried.
func (p *preparer) finishForward(ctx context.Context, t *preparation) {
	o := &p.forward
	if len(t.changed) > 0 {
		p.log.InfoContext(ctx, "changed FORWARD of iptables", "reason", changedForward(t.changed, t.opened))
	}
	err := t.forwardErr
	p.monitor.SetClosed(iptables.ClosedBy(err))
	var before string
	p.record.update(func(s *Status) {
		before, s.ForwardError, s.ForwardOpened = s.ForwardError, errorText(err), t.opened
	})
	if err != nil && before != err.Error() {
		p.log.WarnContext(ctx, "FORWARD of iptables may drop traffic to our addresses", "err", err)
	}
	o.failed = time.Time{}
	if err != nil {
		o.due, o.failed = true, time.Now()
		o.retry = time.AfterFunc(forwardRetry, p.notify)
		return
	}
	o.opened = t.through
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
func (f *forwardOpener) stop() {
	if f.retry != nil {
		f.retry.Stop()
	}
}
