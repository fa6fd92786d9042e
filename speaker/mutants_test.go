package speaker

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/proxy"
)

// each calls do for each path of a pass, with its target.
func each(p *pass, d *plan.Desired, do func(path *announcePath, want target) error) error {
	var errs []error
	for _, path := range p.paths {
		errs = append(errs, do(path, path.target(d, time.Now())))
	}
	return errors.Join(errs...)
}

// shrinkAll and announceAll are steps of run.
func shrinkAll(p *pass, ctx context.Context, d *plan.Desired) error {
	if p.last == nil {
		return nil
	}
	return each(p, d, func(path *announcePath, want target) error { return p.shrink(ctx, path, d, want) })
}

func announceAll(p *pass, ctx context.Context, d *plan.Desired) error {
	return each(p, d, func(path *announcePath, want target) error { return p.announce(ctx, path, d, want) })
}

// Each mutant breaks one rule of the pass.
var mutants = map[string]runner{
	"announces before it forwards": func(p *pass, ctx context.Context, d *plan.Desired) error {
		return errors.Join(shrinkAll(p, ctx, d), announceAll(p, ctx, d), p.forward(ctx, d))
	},
	"forwards before it withdraws": func(p *pass, ctx context.Context, d *plan.Desired) error {
		p.forwarder.Set(ctx, d.Proxy)
		return p.run(ctx, d)
	},
	"announces what it could not program": func(p *pass, ctx context.Context, d *plan.Desired) error {
		return errors.Join(shrinkAll(p, ctx, d), p.forward(ctx, d), announceAll(p, ctx, d))
	},
	"lingers for ever": func(p *pass, ctx context.Context, d *plan.Desired) error {
		p.bgp().linger, p.l2().linger = time.Hour, time.Hour
		return p.run(ctx, d)
	},
	"lingers without backends": func(p *pass, ctx context.Context, d *plan.Desired) error {
		shrunk := shrinkAll(p, ctx, d)
		if err := p.forwarder.Set(ctx, d.Proxy); err != nil {
			return errors.Join(shrunk, err)
		}
		return errors.Join(shrunk, announceAll(p, ctx, d))
	},
	"opens sessions at once": func(p *pass, ctx context.Context, d *plan.Desired) error {
		return errors.Join(p.announce(ctx, p.bgp(), d, target{}), p.run(ctx, d))
	},
	"lingers with pods that are gone": func(p *pass, ctx context.Context, d *plan.Desired) error {
		stale := *d
		if gone := sortedset.Only(p.bgp().announcedAddrs, d.Announce, netip.Addr.Compare); p.last != nil &&
			len(gone) > 0 {
			// as if the kernel were only programmed for what is announced
			stale.Proxy = p.last.Proxy
		}
		return p.run(ctx, &stale)
	},
	"does not refuse what is in an aggregate": func(p *pass, ctx context.Context, d *plan.Desired) error {
		careless := *d
		careless.Proxy.Owned = d.Inputs.Owned
		return p.run(ctx, &careless)
	},
	"forgets an aggregate that it withdrew": func(p *pass, ctx context.Context, d *plan.Desired) error {
		clear(p.bgp().lingeringAggregates)
		return p.run(ctx, d)
	},
	"withdraws before there is another route": func(p *pass, ctx context.Context, d *plan.Desired) error {
		w := p.bgp()
		stay := intersect(target{w.announcedPrefixes, w.announcedAddrs}, target{d.Prefixes, d.Routed})
		if stay.prefixes.Len() == w.announcedPrefixes.Len() {
			return p.run(ctx, d)
		}
		return errors.Join(p.announce(ctx, w, d, stay), p.run(ctx, d))
	},
	"delays withdrawals from neighbours": func(p *pass, ctx context.Context, d *plan.Desired) error {
		p.l2().keeps = p.l2().delays
		return p.run(ctx, d)
	},
	"drops lingering for neighbours when routers have a route": func(p *pass, ctx context.Context,
		d *plan.Desired) error {
		p.l2().lingering = p.l2().lingering.without(p.bgp().announcedAddrs)
		return p.run(ctx, d)
	},
	"lingers for neighbours as for routers": func(p *pass, ctx context.Context, d *plan.Desired) error {
		p.l2().linger = p.bgp().linger
		return p.run(ctx, d)
	},
	"treats probed addresses as not announced": func(p *pass, ctx context.Context, d *plan.Desired) error {
		p.l2().announcer = ignoresProbes{p.l2().announcer.(interface{ overL2() *l2Announcer }).overL2()}
		return p.run(ctx, d)
	},
	"omits taken addresses": func(p *pass, ctx context.Context, d *plan.Desired) error {
		p.forwarder = omitsTaking{p.forwarder}
		return p.run(ctx, d)
	},
	"lists held addresses as taken": func(p *pass, ctx context.Context, d *plan.Desired) error {
		p.forwarder = takesAll{p.forwarder, d.Answered.Slice()}
		return p.run(ctx, d)
	},
	"waits again for other nodes after an error": func(p *pass, ctx context.Context, d *plan.Desired) error {
		err := p.run(ctx, d)
		if err != nil {
			clear(p.l2().announcer.(interface{ overL2() *l2Announcer }).overL2().handover.waits)
		}
		return err
	},
	"withdraws from routers alone what it cannot repair": func(p *pass, ctx context.Context, d *plan.Desired) error {
		both := p.paths
		defer func() { p.paths = both }()
		if p.forwarder.Intact().Intact {
			return p.run(ctx, d)
		}
		err := p.forward(ctx, d)
		if p.paths = both[:1]; err != nil {
			return errors.Join(err, p.announce(ctx, p.paths[0], d, target{}))
		}
		p.paths = both
		return p.run(ctx, d)
	},
}

// omitsTaking lists no taken addresses, takesAll all held ones.
type (
	omitsTaking struct{ forwarder }
	takesAll    struct {
		forwarder
		answered []netip.Addr
	}
)

func (f omitsTaking) Set(ctx context.Context, want proxy.State) error {
	want.Taking = nil
	return f.forwarder.Set(ctx, want)
}

func (f takesAll) Set(ctx context.Context, want proxy.State) error {
	want.Taking = f.answered
	return f.forwarder.Set(ctx, want)
}

// intersect returns what is in both targets.
func intersect(a, b target) target {
	prefixes := sortedset.Only(a.prefixes, b.prefixes, sortedset.ComparePrefixes)
	addrs := sortedset.Only(a.addrs, b.addrs, netip.Addr.Compare)
	return target{sortedset.Without(a.prefixes, prefixes, sortedset.ComparePrefixes),
		sortedset.Without(a.addrs, addrs, netip.Addr.Compare)}
}

// inEach are mutants that break a rule of one path.
var inEach = map[string]func(w *announcePath, d *plan.Desired){
	"does not linger": func(w *announcePath, _ *plan.Desired) { w.linger = 0 },
	"forgets the withdrawal when the address is wanted again": func(w *announcePath, d *plan.Desired) {
		w.lingering = w.lingering.without(d.Announce)
	},
	"treats a failed withdrawal as done": func(w *announcePath, d *plan.Desired) {
		have := intersect(target{w.announcedPrefixes, w.announcedAddrs}, w.targetOf(d))
		w.announcedAddrs, w.announcedPrefixes = have.addrs, have.prefixes
	},
}

// Each mutant breaks one rule of the pass. If one survives, the trial does not test the
// rule.
func TestPassMutantsAreCaught(t *testing.T) {
	all := maps.Clone(mutants)
	for name, breaks := range inEach {
		for i, way := range []string{"BGP", "L2"} {
			all[way+" "+name] = func(p *pass, ctx context.Context, d *plan.Desired) error {
				breaks(p.paths[i], d)
				return p.run(ctx, d)
			}
		}
	}
	for name, run := range all {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				if len(try(t, seed, run)) > 0 {
					return
				}
			}
			t.Error("300 random worlds did not catch it")
		})
	}
}
