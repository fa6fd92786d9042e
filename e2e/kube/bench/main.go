// Command bench measures Fanfare and kube-proxy side by side, on a real control
// plane with a real router, and writes what it saw into its section of
// docs/benchmarks.md: `make bench-kube`.
//
// Fanfare's speaker runs on node n1, kube-proxy on node n3: each has a network
// namespace of its own, and neither sees the other's rules. Both read the same
// API server and hear the same events.
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

// An options value is what the flags say.
type options struct {
	sizes   []int
	repeats int
	binary  string
	source  string
	output  string
}

func main() {
	o := options{sizes: []int{10, 1000, 5000}}
	flag.Func("sizes", "numbers of Services to measure with, smallest first (default 10,1000,5000)", func(v string) error { return parseSizes(v, &o.sizes) })
	flag.IntVar(&o.repeats, "repeats", 20, "how often each event is measured")
	flag.StringVar(&o.binary, "fanfare", "bin/fanfare", "the program to measure")
	flag.StringVar(&o.source, "source", ".", "the root of the repository")
	flag.StringVar(&o.output, "o", "docs/benchmarks.md", "the document to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
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
		return errors.New("the smallest comes first")
	}
	return nil
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and FRR need root")
	}
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	tools, err := kube.Tools(ctx, true)
	if err != nil {
		return err
	}
	l, err := kube.UpLab(ctx, kube.LabOptions{ID: fmt.Sprintf("b%d", os.Getpid()), Source: o.source, Fanfare: o.binary, Tools: tools})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	b, err := newBench(ctx, l, tools, slog.Default())
	if err != nil {
		return err
	}
	defer b.close()
	r := report{Repeats: o.repeats, Began: time.Now()}
	if r.Machine, err = describe(ctx, b); err != nil {
		return err
	}
	o.repeats += o.repeats % 2 // what moves is back at the end
	for _, n := range o.sizes {
		res, err := b.measure(ctx, n, o.repeats)
		if err != nil {
			return fmt.Errorf("%d Services: %w", n, err)
		}
		r.Results = append(r.Results, res)
	}
	r.Took = time.Since(r.Began)
	text, err := r.render()
	if err != nil {
		return err
	}
	return measure.Publish(o.output, "make bench-kube", text)
}
