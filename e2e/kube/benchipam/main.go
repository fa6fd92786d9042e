// Command benchipam measures how soon many Services have addresses, on a real control
// plane, and writes what it saw into its section of docs/benchmarks.md: `make bench-ipam`.
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

	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

// An options value is what the flags say.
type options struct {
	binary, source, output string
	services               int
	restarts, changes      int
}

// most is bounded by the pool.
const most = 60_000

func main() {
	var o options
	flag.IntVar(&o.services, "services", 10_000, fmt.Sprintf("how many Services there are, 1 to %d", most))
	flag.IntVar(&o.restarts, "restarts", 5, "how often the controller starts again")
	flag.IntVar(&o.changes, "changes", 20, "how often a Service comes, and an address is freed for one that waits")
	flag.StringVar(&o.binary, "fanfare", "bin/fanfare", "the program to measure")
	flag.StringVar(&o.source, "source", ".", "the root of the repository")
	flag.StringVar(&o.output, "o", "docs/benchmarks.md", "the document in which to write a section; empty: none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "benchipam:", err)
		os.Exit(1)
	}
}

func (o *options) check() (err error) {
	switch {
	case o.services < 1 || o.services > most:
		return fmt.Errorf("-services %d: 1 to %d are possible", o.services, most)
	case o.restarts < 1 || o.changes < 1:
		return errors.New("-restarts and -changes: at least 1")
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
	return measure.Publish(o.output, "make bench-ipam", text)
}
