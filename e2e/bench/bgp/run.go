package bgp

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// options say what to measure, and how often.
type options struct {
	measure.Inputs
	routes, routers int
	starts          int // of each announcer
	changes, resets int // in each start
	calm            time.Duration
}

// Flags adds the benchmark's flags and returns how to run it.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.routes, "routes", 10_000, "how many routes are announced, at most 50000")
	set.IntVar(&o.routers, "routers", 4, "to how many routers, at most 200")
	set.IntVar(&o.starts, "starts", 4, "how often each announcer is started")
	set.IntVar(&o.changes, "changes", 30, "how often one route comes and goes, in each start")
	set.IntVar(&o.resets, "resets", 4, "how often a router comes back, in each start")
	set.DurationVar(&o.calm, "calm", 100*time.Millisecond, "the time between two changes")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

// quicken makes everything small.
func (o *options) quicken() {
	o.routes, o.routers, o.starts, o.changes, o.resets, o.calm = 100, 4, 1, 2, 1, 10*time.Millisecond
}

func (o *options) check() error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root")
	case o.routes < 1 || o.routes > 50_000:
		return fmt.Errorf("-routes %d: 1 to 50000 are possible", o.routes)
	case o.routers < 1 || o.routers > 200:
		return fmt.Errorf("-routers %d: 1 to 200 are possible", o.routers)
	}
	return nil
}
