package proxy

import (
	"context"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// set makes the kernel forward a State that is known to be valid: by the differences from the
// last one, or by what the kernel is found to hold.
func (p *Proxy) set(ctx context.Context, want State) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	vips, err := state.DiffVIPs(p.have.VIPs, want.VIPs)
	if err != nil {
		return err
	}
	p.cleaner.Expect(want)
	p.offloader.shrink(ctx, want)
	// Taken before the kernel is read: later changes signal again.
	p.mark = p.watch.rules.mark()
	disturbed, recheck := p.watch.take(), p.recheck.Swap(false)
	p.forward.plan(want, vips, p.watch.takeForward() || recheck)
	if recheck || disturbed || !p.known || want.Node != p.have.Node {
		return p.reconcile(ctx, want)
	}
	c := state.DiffStates(p.have, want, vips)
	if c.Empty() && len(vips) == 0 && slices.Equal(p.have.Redirects, want.Redirects) {
		p.have = want
		return nil
	}
	// What changes no element may change a chain's name: the renderer has the say.
	switch err := p.renderer.Update(ctx, renderer.Step{Have: p.have, Want: want, VIPs: vips, Elements: c}); {
	case isStale(err):
		p.metrics.retries.Inc()
		return p.reconcile(ctx, want)
	case err != nil:
		p.known = false
		return err
	case c.Empty():
		p.have = want
		return nil
	}
	p.recordState(want, p.elements+len(c.Add)-len(c.Del))
	p.cleaner.Add(conntrack.StaleAfter(c), want, p.swept)
	return nil
}

// recordState notes that the kernel holds want.
func (p *Proxy) recordState(want State, elements int) {
	changes, _ := state.DiffVIPs(p.have.VIPs, want.VIPs) // Set has looked at the order
	for _, c := range changes {
		p.entries += c.Want.Entries(p.mode) - c.Have.Entries(p.mode)
	}
	p.have, p.known, p.written, p.elements = want, true, true, elements
	p.metrics.elements.Set(float64(elements))
	p.metrics.vips.Set(float64(len(want.VIPs)))
}

// maxAttempts bounds how often a Set starts over because another program changes our
// table meanwhile.
const maxAttempts = 5

// reconcile reads the kernel's table and turns it into want's.
func (p *Proxy) reconcile(ctx context.Context, want State) error {
	// Only if the kernel is known to have held have does a difference mean
	// that another program interfered.
	expected := p.known
	p.known = false
	var err error
	for attempt := range maxAttempts {
		if attempt > 0 {
			p.metrics.retries.Inc()
		}
		if err = p.converge(ctx, want, expected); !isStale(err) {
			return err
		}
	}
	return err
}

func (p *Proxy) converge(ctx context.Context, want State, expected bool) error {
	var have *State
	if expected {
		have = &p.have
	}
	out, err := p.renderer.Converge(ctx, have, want)
	if out.Leaked {
		p.swept = nil
		if r := p.preparer.running; r != nil {
			r.stale = true
		}
	}
	if expected && p.damage == "" {
		p.damage = out.Found
	}
	if err != nil {
		return err
	}
	p.watch.rules.confirm(p.mark, time.Now())
	all := state.RenderState(want)
	p.recordState(want, len(all))
	stale := conntrack.StaleAfter(state.DiffElements(out.Had, all))
	if !expected {
		stale.AddAdopted(out.Had)
	}
	p.cleaner.Add(stale, want, p.swept)
	if p.damage != "" {
		p.metrics.repairs.Inc()
		p.record.repaired(p.damage)
		p.log.WarnContext(ctx, "repaired the rules", "reason", p.damage)
		p.damage = ""
	}
	return nil
}
