// Command benchl2 measures how long an address that goes over layer 2 is without a node
// when its node goes, in several ways, and what many addresses cost while nothing
// happens. It writes what it saw into its section of docs/benchmarks.md: `make bench-l2`.
//
// It uses the laboratory (e2e/lab): three nodes, and a host on their segment that opens
// connections all the time. What the host's kernel knows of its neighbours has the
// kernel's own times.
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
		fmt.Fprintln(os.Stderr, "benchl2:", err)
		os.Exit(1)
	}
}

// options say what to measure, and how often.
type options struct {
	binary, containerlab, output string
	runs                         int           // of each way to go
	addresses                    int           // at rest
	rest                         time.Duration // how long nothing happens
}

func flags() options {
	var o options
	flag.StringVar(&o.binary, "fanfare", "bin/fanfare", "the program to measure")
	flag.StringVar(&o.containerlab, "containerlab", "e2e/containerlab", "the folder with the laboratory's topology")
	flag.StringVar(&o.output, "o", "docs/benchmarks.md", "the document in which to write a section; empty: none")
	flag.IntVar(&o.runs, "runs", 20, "how often a node goes, in each way")
	flag.IntVar(&o.addresses, "addresses", 1000, "how many addresses there are at rest, at most 1000")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long nothing happens")
	quick := flag.Bool("quick", false, "see whether it works: each once, few addresses, and numbers that say nothing")
	flag.Parse()
	if *quick {
		o.quicken()
	}
	return o
}

// quicken makes everything small.
func (o *options) quicken() { o.runs, o.addresses, o.rest = 1, 10, time.Second }

func (o *options) check() (err error) {
	switch {
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root")
	case o.runs < 1:
		return fmt.Errorf("-runs %d: want at least one", o.runs)
	case o.addresses < 1 || o.addresses > 1000:
		return fmt.Errorf("-addresses %d: 1 to 1000 are possible", o.addresses)
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
	return measure.Publish(o.output, "make bench-l2", text)
}
