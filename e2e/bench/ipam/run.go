package ipam

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// An options value is what the flags say.
type options struct {
	measure.Inputs
	services          int
	restarts, changes int
}

// most is bounded by the pool.
const most = 60_000

// quicken makes everything small.
func (o *options) quicken() { o.services, o.restarts, o.changes = 30, 1, 2 }

// Flags adds the benchmark's flags and returns how to run it.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.services, "services", 10_000, fmt.Sprintf("how many Services there are, 1 to %d", most))
	set.IntVar(&o.restarts, "restarts", 5, "how often the controller starts again")
	set.IntVar(&o.changes, "changes", 20, "how often a Service comes, and an address is freed for one that waits")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

func (o *options) check() error {
	switch {
	case o.services < 1 || o.services > most:
		return fmt.Errorf("-services %d: 1 to %d are possible", o.services, most)
	case o.restarts < 1 || o.changes < 1:
		return errors.New("-restarts and -changes: at least 1")
	}
	return nil
}
