package proxy

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
)

// Flags adds the benchmark's flags and returns its run function.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.services, "services", 10_000, "number of Services, besides one")
	// More endpoints of 10,000 Services exceed what Fanfare's iptables mode accepts in total.
	set.IntVar(&o.endpoints, "endpoints", 7, "number of endpoints of each Service")
	set.IntVar(&o.loadServices, "load-services", 50_000,
		"number of Services with one endpoint each, which are only loaded and changed")
	set.IntVar(&o.repeats, "repeats", 50, "number of changed endpoints for each program")
	set.DurationVar(&o.calm, "calm", 750*time.Millisecond,
		"minimum time between two changes; the maximum is twice that")
	set.IntVar(&o.sets, "sets", 2000, "number of changed endpoints for measuring Set")
	set.IntVar(&o.rounds.Count, "rounds", 15, "number of measurements of each lane")
	set.DurationVar(&o.rounds.Span, "span", 300*time.Millisecond, "duration of each measurement")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

// quicken reduces all sizes.
func (o *options) quicken() {
	o.services, o.endpoints, o.loadServices = 100, 3, 200
	o.repeats, o.calm, o.sets = 2, 10*time.Millisecond, 50
	o.rounds = rounds{Count: 2, Span: 20 * time.Millisecond}
}

// measureAll runs the benchmark and leaves nothing behind.
func measureAll(ctx context.Context, o options) (r report, err error) {
	tools, err := kube.Tools(ctx, true)
	if err != nil {
		return r, err
	}
	w, err := newWorld(ctx)
	b := &bench{world: w, options: o, tools: tools, log: slog.Default()}
	if w != nil {
		defer func() { err = errors.Join(err, b.close()) }()
	}
	if err != nil {
		return r, err
	}
	r = report{Began: time.Now(), Services: o.services, Endpoints: o.endpoints, Rounds: o.rounds}
	if r.Machine, err = measure.Describe(ctx, b.Binary, measure.Kubernetes(tools, "kube-proxy"), measure.NFT,
		iptables); err != nil {
		return r, err
	}
	if err := b.run(ctx); err != nil {
		return r, err
	}
	for _, l := range b.lanes {
		r.Lanes = append(r.Lanes, l.laneResult)
	}
	r.Took, r.Trials, r.Set, r.LoadOnly = time.Since(r.Began), b.trials, b.set, b.load
	return r, nil
}

// iptables returns the version of the iptables that kube-proxy uses here.
func iptables(m *measure.Machine) measure.Version {
	return measure.Version{To: &m.IPTables, Command: []string{legacy["iptables"], "--version"}}
}
