// Command benchproxy measures what Fanfare's and kube-proxy's rules cost: packets
// that pass them, changes to them, loading them, and holding them. It writes what it
// saw into its section of docs/benchmarks.md: `make bench-proxy`.
//
// The programs are the real ones, on a real control plane. Each writes its rules in
// a network namespace of its own, between one client and one server that all share.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 3 && os.Args[1] == setWord {
		err = runSet(ctx, os.Args[2], os.Stdout)
	} else {
		err = run(ctx, flags())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchproxy:", err)
		os.Exit(1)
	}
}

func flags() options {
	var o options
	flag.StringVar(&o.binary, "fanfare", "bin/fanfare", "the program to measure")
	flag.StringVar(&o.source, "source", ".", "the root of the repository")
	flag.StringVar(&o.output, "o", "docs/benchmarks.md", "the document in which to write a section; empty: none")
	flag.IntVar(&o.services, "services", 10_000, "how many Services, beside one")
	flag.IntVar(&o.endpoints, "endpoints", 10, "how many endpoints each Service has")
	flag.IntVar(&o.repeats, "repeats", 50, "how many endpoints change, for each program")
	flag.DurationVar(&o.calm, "calm", 750*time.Millisecond, "the least time between two changes; the most is twice that")
	flag.IntVar(&o.sets, "sets", 2000, "how many endpoints change by which Set is measured")
	flag.IntVar(&o.rounds.Count, "rounds", 15, "how often each way is measured")
	flag.DurationVar(&o.rounds.Span, "span", 300*time.Millisecond, "for how long, each time")
	quick := flag.Bool("quick", false, "see whether it works: a hundred Services, two rounds, and numbers that say nothing")
	flag.Parse()
	if *quick {
		o.quicken()
	}
	return o
}

// quicken makes everything small.
func (o *options) quicken() {
	o.services, o.endpoints = 100, 3
	o.repeats, o.calm, o.sets = 2, 10*time.Millisecond, 50
	o.rounds = rounds{Count: 2, Span: 20 * time.Millisecond}
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	r, err := measureAll(ctx, o)
	if err != nil {
		return err
	}
	text, err := r.render()
	if err != nil {
		return err
	}
	return measure.Publish(o.output, "make bench-proxy", text)
}

// measureAll does what there is to do, and leaves nothing behind.
func measureAll(ctx context.Context, o options) (r report, err error) {
	tools, err := kube.Tools(ctx, true)
	if err != nil {
		return r, err
	}
	w, err := newWorld(ctx)
	b := &bench{world: w, options: o, tools: tools, log: slog.Default()}
	if w != nil {
		defer func() { err = errors.Join(err, b.close()) }()
	}
	if err != nil {
		return r, err
	}
	r = report{Began: time.Now(), Services: o.services, Endpoints: o.endpoints, Rounds: o.rounds}
	if r.Machine, err = describe(ctx, b); err != nil {
		return r, err
	}
	if err := b.run(ctx); err != nil {
		return r, err
	}
	r.Took, r.Lanes, r.Trials, r.Set = time.Since(r.Began), b.lanes, b.trials, b.set
	return r, nil
}
