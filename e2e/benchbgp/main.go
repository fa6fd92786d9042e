// Command benchbgp measures how fast many routes reach several routers, and what
// announcing them takes: Fanfare's speaker, and beside it FRR, which announces the
// same routes by itself. It writes what it saw into its section of
// docs/benchmarks.md: `make bench-bgp`.
//
// The routers are this program: each is a listener that reads as much of BGP as it
// takes to know which routes it has, and when it got them. So whoever announces is
// heard by the same ears.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flags()); err != nil {
		fmt.Fprintln(os.Stderr, "benchbgp:", err)
		os.Exit(1)
	}
}

// options say what to measure, and how often.
type options struct {
	binary, output  string
	routes, routers int
	starts          int // of each announcer
	changes, resets int // in each start
	calm            time.Duration
}

func flags() options {
	var o options
	flag.StringVar(&o.binary, "fanfare", "bin/fanfare", "the program to measure")
	flag.StringVar(&o.output, "o", "docs/benchmarks.md", "the document in which to write a section; empty: none")
	flag.IntVar(&o.routes, "routes", 10_000, "how many routes are announced, at most 50000")
	flag.IntVar(&o.routers, "routers", 4, "to how many routers, at most 200")
	flag.IntVar(&o.starts, "starts", 4, "how often each announcer is started")
	flag.IntVar(&o.changes, "changes", 30, "how often one route comes and goes, in each start")
	flag.IntVar(&o.resets, "resets", 4, "how often a router comes back, in each start")
	flag.DurationVar(&o.calm, "calm", 100*time.Millisecond, "the time between two changes")
	quick := flag.Bool("quick", false, "see whether it works: a hundred routes, one start, and numbers that say nothing")
	flag.Parse()
	if *quick {
		o.quicken()
	}
	return o
}

// quicken makes everything small.
func (o *options) quicken() {
	o.routes, o.routers, o.starts, o.changes, o.resets, o.calm = 100, 4, 1, 2, 1, 10*time.Millisecond
}

func (o *options) check() (err error) {
	switch {
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root")
	case o.routes < 1 || o.routes > 50_000:
		return fmt.Errorf("-routes %d: 1 to 50000 are possible", o.routes)
	case o.routers < 1 || o.routers > 200:
		return fmt.Errorf("-routers %d: 1 to 200 are possible", o.routers)
	}
	o.binary, err = filepath.Abs(o.binary)
	return err
}

func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
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
	return measure.Publish(o.output, "make bench-bgp", text)
}
