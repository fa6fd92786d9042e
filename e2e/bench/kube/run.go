package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
)

// An options value holds the flags.
type options struct {
	measure.Inputs
	sizes   []int
	repeats int
	idle    time.Duration // how long an idle cluster is measured
}

// quicken reduces all sizes.
func (o *options) quicken() { o.sizes, o.repeats, o.idle = []int{10}, 2, time.Second }

// Flags adds the benchmark's flags and returns its run function.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	o := options{sizes: []int{10, 1000, 5000}, idle: 10 * time.Second}
	set.Func("sizes", "numbers of Services to measure with, smallest first (default 10,1000,5000)",
		func(v string) error { return parseSizes(v, &o.sizes) })
	set.IntVar(&o.repeats, "repeats", 20, "number of measurements of each event")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render, Figures: report.figures,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

func parseSizes(v string, sizes *[]int) error {
	*sizes = nil
	for _, s := range strings.Split(v, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxServices {
			return fmt.Errorf("%q: want numbers from 1 to %d", s, maxServices)
		}
		*sizes = append(*sizes, n)
	}
	if !slices.IsSorted(*sizes) {
		return errors.New("want the smallest number first")
	}
	return nil
}

func (o *options) check() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and FRR need root")
	}
	return nil
}

func measureAll(ctx context.Context, o options) (r report, err error) {
	tools, err := kube.Tools(ctx, true)
	if err != nil {
		return r, err
	}
	l, err := kube.UpLab(ctx, kube.LabOptions{
		ID: fmt.Sprintf("b%d", os.Getpid()), Source: o.Source, Fanfare: o.Binary, Tools: tools,
	})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	b, err := newBench(ctx, l, tools, slog.Default())
	if err != nil {
		return r, err
	}
	defer b.close()
	r = report{Repeats: o.repeats, Began: time.Now()}
	if r.Machine, err = measure.Describe(ctx, b.Binary, measure.Kubernetes(b.tools, "kube-apiserver"), measure.FRR,
		measure.BIRD, measure.NFT); err != nil {
		return r, err
	}
	o.repeats += o.repeats % 2 // an even number moves the endpoint back
	for _, n := range o.sizes {
		res, err := b.measure(ctx, n, o)
		if err != nil {
			return r, fmt.Errorf("%d Services: %w", n, err)
		}
		r.Results = append(r.Results, res)
	}
	r.Took = time.Since(r.Began)
	return r, nil
}
