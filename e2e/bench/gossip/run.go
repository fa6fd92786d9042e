package gossip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// An options value holds the flags.
type options struct {
	measure.Inputs
	members            int           // of the largest cluster
	parts              int           // in which it is simulated at once
	deaths             int           // in each cluster, at most
	virtual, processor time.Duration // limits of each cluster; of processor time, of each part
	seed               uint64        // of the first part
}

// smaller are the numbers of members of the other clusters.
var smaller = []int{3, 10, 100}

// quicken reduces all sizes.
func (o *options) quicken() {
	o.members, o.parts, o.deaths, o.virtual, o.processor = 5, 2, 4, 16*time.Second, time.Minute
}

// Flags adds the benchmark's flags and returns its run function.
func Flags(set *flag.FlagSet, in *measure.Inputs) measure.Run {
	var o options
	set.IntVar(&o.members, "members", 1000, "members of the largest cluster, 4 to 2000; 1000 need 6 GB of memory")
	set.IntVar(&o.parts, "parts", 2, "simulate the largest cluster in so many parts at once, each by a core "+
		"of its own; at most 64")
	set.IntVar(&o.deaths, "deaths", 60, "number of nodes that lose their power in each cluster, at most; afterwards, "+
		"losses and stalls go on alone")
	set.DurationVar(&o.virtual, "virtual", time.Hour, "how long each cluster runs, by its own clock")
	set.DurationVar(&o.processor, "processor", 3*time.Hour,
		"processor time after which a part ends before; a second of 1000 members takes two to six")
	set.Uint64Var(&o.seed, "seed", 1, "seed of what is lost, stalls and dies")
	return o.steps().Run(in, &o.Inputs)
}

func (o *options) steps() measure.Steps[report] {
	return measure.Steps[report]{
		Quicken: o.quicken, Check: o.check, Render: report.render, Figures: report.figures,
		Measure: func(ctx context.Context) (report, error) { return measureAll(ctx, *o) },
	}
}

func (o *options) check() error {
	switch {
	case o.members < 4 || o.members > 2000:
		return fmt.Errorf("-members %d: want 4 to 2000", o.members)
	case o.parts < 1 || o.parts > 64 || o.deaths < o.parts:
		return fmt.Errorf("-parts %d, -deaths %d: want 1 to 64 parts, and a death in each", o.parts, o.deaths)
	case o.virtual < time.Second || o.processor < time.Second:
		return errors.New("-virtual and -processor: want at least 1s")
	}
	return nil
}

// sizes are the numbers of members, each once.
func (o *options) sizes() (all []int) {
	for _, n := range smaller {
		if n < o.members {
			all = append(all, n)
		}
	}
	return append(all, o.members)
}

func measureAll(ctx context.Context, o options) (r report, err error) {
	r = report{Began: time.Now(), Deaths: o.deaths, VirtualLimit: o.virtual, ProcessorLimit: o.processor}
	if r.Machine, err = measure.Describe(ctx, o.Binary); err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "bench-gossip-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "gossip.test")
	if err := command(ctx, o.Source, "go", "test", "-c", "-o", program, "./internal/membership/gossip"); err != nil {
		return r, err
	}
	for _, n := range o.sizes() {
		one, err := o.measureOne(ctx, dir, program, n)
		if err != nil {
			return r, fmt.Errorf("%d members: %w", n, err)
		}
		r.Clusters = append(r.Clusters, one)
	}
	r.Took = time.Since(r.Began)
	return r, nil
}

// measureOne simulates a cluster: the largest in parts, at the same time.
func (o *options) measureOne(ctx context.Context, dir, program string, members int) (cluster, error) {
	n := 1
	if members == o.members {
		n = o.parts
	}
	parts := make([]cluster, n)
	g, ctx := errgroup.WithContext(ctx)
	for i := range parts {
		g.Go(func() (err error) {
			parts[i], err = o.simulate(ctx, dir, program, members, i, n)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return cluster{}, err
	}
	return merge(parts), nil
}

// simulate runs the simulation of a part, of n, of a cluster.
func (o *options) simulate(ctx context.Context, dir, program string, members, part, n int) (c cluster, err error) {
	path := filepath.Join(dir, fmt.Sprintf("result%d.json", part))
	err = command(ctx, dir, program, "-test.run=^TestSimulation$", "-test.timeout=0",
		fmt.Sprintf("-members=%d", members), fmt.Sprintf("-deaths=%d", o.deaths/n),
		fmt.Sprintf("-virtual=%s", o.virtual/time.Duration(n)),
		fmt.Sprintf("-processor=%s", o.processor), fmt.Sprintf("-seed=%d", o.seed+uint64(part)), "-result="+path)
	if err != nil {
		return c, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return c, d.Decode(&c)
}

// command runs a program in a folder.
func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w:\n%s", filepath.Base(name), err, out)
	}
	return nil
}
