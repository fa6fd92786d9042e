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

// options say what to measure, and how often.
type options struct {
	measure.Inputs
	runs      int           // of each way to go
	addresses int           // at rest
	rest      time.Duration // how long nothing happens
}

// Flags adds the benchmark's flags and returns how to run it.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.runs, "runs", 20, "how often a node goes, in each way")
	set.IntVar(&o.addresses, "addresses", 1000, "how many addresses there are at rest, at most 1000")
	set.DurationVar(&o.rest, "rest", time.Minute, "how long nothing happens")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

// quicken makes everything small.
func (o *options) quicken() { o.runs, o.addresses, o.rest = 1, 10, time.Second }

func (o *options) check() error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root")
	case o.runs < 1:
		return fmt.Errorf("-runs %d: want at least one", o.runs)
	case o.addresses < 1 || o.addresses > 1000:
		return fmt.Errorf("-addresses %d: 1 to 1000 are possible", o.addresses)
	}
	return nil
}
