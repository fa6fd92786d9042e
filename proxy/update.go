package proxy

import (
	"context"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// set makes the kernel forward a valid State: by the differences from the last one or, if the
// kernel's state is unknown, by what the kernel holds.
func (p *Proxy) set(ctx context.Context, want State) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	vips := state.DiffVIPs(p.have.VIPs, want.VIPs)
	p.cleaner.Expect(want)
	p.offloader.shrink(ctx, want)
	// Taken before the kernel is read: later changes signal again.
	p.mark = p.watch.rules.mark()
	disturbed, recheck := p.watch.take(), p.recheck.Swap(false)
	p.forward.plan(want, vips, p.watch.takeForward() || recheck)
	if recheck || disturbed || !p.known || want.Node != p.have.Node {
		return p.reconcile(ctx, want)
	}
	c := state.DiffStates(p.have, want, vips, p.replies)
	if c.Empty() && len(vips) == 0 && slices.Equal(p.have.Redirects, want.Redirects) {
		p.have = want
		return nil
	}
	// Even without changed elements, the renderer decides: a chain's name may change.
	switch err := p.renderer.Update(ctx, renderer.Step{Have: p.have, Want: want, VIPs: vips, Elements: c}); {
	case isStale(err):
		p.metrics.retries.Inc()
		return p.reconcile(ctx, want)
	case err != nil:
		p.known = false
		return err
	case c.Empty():
		p.recordState(want, p.elements)
		return nil
	}
	p.recordState(want, p.elements+len(c.Add)-len(c.Del))
	p.cleaner.Add(conntrack.StaleAfter(c), want, p.swept)
	return nil
}

// recordState records that the kernel holds want.
func (p *Proxy) recordState(want State, elements int) {
	for _, c := range state.DiffVIPs(p.have.VIPs, want.VIPs) {
		p.entries += c.Want.Entries(p.mode) - c.Have.Entries(p.mode)
		p.replies.Record(c)
	}
	p.have, p.known, p.written, p.elements = want, true, true, elements
	p.metrics.elements.Set(float64(elements))
	p.metrics.vips.Set(float64(want.VIPs.Len()))
}
