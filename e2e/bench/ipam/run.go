package ipam

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// An options value holds the flags.
type options struct {
	measure.Inputs
	services          int
	restarts, changes int
}

// maxServices is limited by the pool.
const maxServices = 60_000

// quicken reduces all sizes.
func (o *options) quicken() { o.services, o.restarts, o.changes = 30, 1, 2 }

// Flags adds the benchmark's flags and returns its run function.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.services, "services", 10_000, fmt.Sprintf("number of Services, 1 to %d", maxServices))
	set.IntVar(&o.restarts, "restarts", 5, "number of restarts of the controller")
	set.IntVar(&o.changes, "changes", 20, "number of created Services, and of addresses freed for a waiting Service")
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
	case o.services < 1 || o.services > maxServices:
		return fmt.Errorf("-services %d: want 1 to %d", o.services, maxServices)
	case o.restarts < 1 || o.changes < 1:
		return errors.New("-restarts and -changes: want at least 1")
	}
	return nil
}
