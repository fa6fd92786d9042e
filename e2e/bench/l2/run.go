package l2

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
	runs      int           // of each kind of failure
	addresses int           // at rest
	rest      time.Duration // time without changes
}

// Flags adds the benchmark's flags and returns its run function.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.runs, "runs", 20, "number of failures of each kind")
	set.IntVar(&o.addresses, "addresses", 1000, "number of idle addresses, at most 1000")
	set.DurationVar(&o.rest, "rest", time.Minute, "time without changes")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render, Figures: report.figures,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

// quicken reduces all sizes.
func (o *options) quicken() { o.runs, o.addresses, o.rest = 1, 10, time.Second }

func (o *options) check() error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root")
	case o.runs < 1 || o.runs > 24: // each creates Services with addresses of its own
		return fmt.Errorf("-runs %d: want 1 to 24", o.runs)
	case o.addresses < 1 || o.addresses > 1000:
		return fmt.Errorf("-addresses %d: want 1 to 1000", o.addresses)
	}
	return nil
}
