package proxy

import (
	"context"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// maxAttempts limits how often a Set starts over because another program changes our table
// meanwhile.
const maxAttempts = 5

// reconcile reads the kernel's table and changes it to want.
func (p *Proxy) reconcile(ctx context.Context, want State) error {
	// A difference means that another program interfered only if the kernel is known to have held
	// have.
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
