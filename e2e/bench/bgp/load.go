package bgp

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// loadOptions hold the flags of the benchmark of large loads.
type loadOptions struct {
	options
	sizes []int // numbers of Services
}

// LoadFlags adds the flags of the benchmark of large loads, one speaker with one router, and
// returns its run function.
func LoadFlags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	o := loadOptions{sizes: []int{10_000, 50_000}}
	o.routers = 1
	set.IntVar(&o.starts, "starts", 3, "number of starts with each number of Services")
	set.IntVar(&o.changes, "changes", 100, "number of added and removed routes in each start")
	set.DurationVar(&o.calm, "calm", 100*time.Millisecond, "time between two changes")
	return o.steps().Run(in, &o.Inputs)
}

func (o *loadOptions) steps() measure.Steps[loadReport] {
	return measure.Steps[loadReport]{
		Quicken: o.quicken, Check: o.check, Render: loadReport.render,
		Measure: func(ctx context.Context) (loadReport, error) { return measureLoads(ctx, *o) },
	}
}

// quicken reduces all sizes. The kernel counts CPU time in ticks of 10 ms, some four changes.
func (o *loadOptions) quicken() {
	o.sizes, o.starts, o.changes, o.calm = []int{50, 100}, 1, 20, 10*time.Millisecond
}

func (o *loadOptions) check() error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root")
	case o.starts < 1 || o.changes < 1:
		return fmt.Errorf("-starts %d, -changes %d: want at least 1", o.starts, o.changes)
	}
	return nil
}

// A loadReport holds the content of the page.
type loadReport struct {
	Began           time.Time
	Took            time.Duration
	Machine         measure.Machine
	Starts, Changes int // Changes in each start
	Loads           []load
	// Delay is how long a speaker waits, after the API server refused it, before it uses the saved state.
	Delay time.Duration
}

// A load is what the speaker needed with a number of Services.
type load struct {
	Services int
	result
	// Saved is a start from the saved state, without the API server; nil: not measured.
	Saved *result `json:",omitempty"`
}

// fromSavedState starts without the API server.
var fromSavedState = announcerKind{
	name: "Fanfare, from saved state",
	make: func(o options) announcer { return &fanfare{binary: o.Binary, peers: o.routers, saved: true} },
}

func measureLoads(ctx context.Context, o loadOptions) (r loadReport, err error) {
	r = loadReport{Began: time.Now(), Starts: o.starts, Changes: 2 * o.changes, Delay: watch.RefusedDelay}
	if r.Machine, err = measure.Describe(ctx, o.Binary); err != nil {
		return r, err
	}
	for _, n := range o.sizes {
		r.Loads = append(r.Loads, load{Services: n, Saved: &result{}})
	}
	for n := range o.starts {
		for i := range r.Loads {
			one, with := &r.Loads[i], o.options
			slog.Info("start", "number", n+1, "services", one.Services)
			with.routes = one.Services
			if err := runOnce(ctx, with, announcerKinds[0], &one.result); err != nil {
				return r, fmt.Errorf("%d Services: %w", one.Services, err)
			}
			with.changes = 0 // no API server can report them
			if err := runOnce(ctx, with, fromSavedState, one.Saved); err != nil {
				return r, fmt.Errorf("%d Services from the saved state: %w", one.Services, err)
			}
		}
	}
	r.Took = time.Since(r.Began)
	return r, nil
}

//go:embed load.md.tmpl
var loadDocument string

func (r loadReport) render() (string, error) {
	return measure.Render(loadDocument, template.FuncMap{"pretty": measure.Pretty}, r)
}

// Accessors for the template.

// Restarts reports whether starts from the saved state were measured.
func (r loadReport) Restarts() bool { return len(r.Loads) > 0 && r.Loads[0].Saved != nil }

// Changed returns the times of all changes.
func (l load) Changed() measure.Sample {
	return append(l.Added[:len(l.Added):len(l.Added)], l.Removed...)
}

// Slowest returns the 99th percentile of them.
func (l load) Slowest() time.Duration { return l.Changed().Quantile(0.99) }

// EachCPU returns the CPU time of one change.
func (l load) EachCPU() time.Duration {
	return l.ChangeCPU / time.Duration(max(1, len(l.Changed())))
}
