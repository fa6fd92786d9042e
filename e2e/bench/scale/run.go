package scale

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// An options value holds the flags.
type options struct {
	measure.Inputs
	sizes  []size
	create int
	// duration is of the phases in which something lasts; idle is one with a renewal of each Lease.
	duration, idle time.Duration
	// small and large are the numbers of nodes.
	small, large int
}

// A size is that of a cluster.
type size struct{ Nodes, Services int }

// servicesPerNode is the same in both sizes.
const servicesPerNode = 10

// maxNodes is how many /24 the cluster's pods have.
const maxNodes = 250

// quicken reduces all sizes.
func (o *options) quicken() {
	o.small, o.large, o.create, o.duration, o.idle = 3, 5, 3, time.Second, time.Second
}

// Flags adds the benchmark's flags and returns its run function.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.small, "small", 20, fmt.Sprintf("number of nodes, 2 to %d", maxNodes))
	set.IntVar(&o.large, "large", 60, fmt.Sprintf("larger number of nodes, to %d", maxNodes))
	set.IntVar(&o.create, "create", 1000, "number of Services that are created in one phase")
	set.DurationVar(&o.duration, "duration", 15*time.Second, "duration of the phases in which something lasts")
	set.DurationVar(&o.idle, "idle", time.Minute, "duration of the phase in which nothing happens")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render, Further: report.further,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

func (o *options) check() error {
	switch {
	case o.small < 2 || o.large <= o.small || o.large > maxNodes:
		return fmt.Errorf("-small %d, -large %d: want 2 to %d nodes, and more in -large", o.small, o.large, maxNodes)
	case o.create < 1 || o.duration < time.Second || o.idle < time.Second:
		return errors.New("-create, -duration and -idle: want at least 1, 1s and 1s")
	}
	o.sizes = []size{{o.small, o.small * servicesPerNode}, {o.large, o.large * servicesPerNode}}
	return nil
}
