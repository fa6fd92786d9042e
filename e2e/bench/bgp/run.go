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

// options hold the flags.
type options struct {
	measure.Inputs
	routes, routers int
	starts          int // of each announcer
	changes, resets int // in each start
	calm            time.Duration
}

// Flags adds the benchmark's flags and returns its run function.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.routes, "routes", 10_000, "number of routes, at most 50000")
	set.IntVar(&o.routers, "routers", 4, "number of routers, at most 200")
	set.IntVar(&o.starts, "starts", 4, "number of starts of each announcer")
	set.IntVar(&o.changes, "changes", 30, "number of added and removed routes in each start")
	set.IntVar(&o.resets, "resets", 4, "number of router restarts in each start")
	set.DurationVar(&o.calm, "calm", 100*time.Millisecond, "time between two changes")
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
	o.routes, o.routers, o.starts, o.changes, o.resets, o.calm = 100, 4, 1, 2, 1, 10*time.Millisecond
}

func (o *options) check() error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root")
	case o.routes < 1 || o.routes > 50_000:
		return fmt.Errorf("-routes %d: want 1 to 50000", o.routes)
	case o.routers < 1 || o.routers > 200:
		return fmt.Errorf("-routers %d: want 1 to 200", o.routers)
	}
	return nil
}
