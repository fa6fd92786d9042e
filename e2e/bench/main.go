// Command bench measures Fanfare, and writes the results to docs/benchmarks: as JSON, and as
// a page with figures, which it makes from the JSON alone:
//
//	bench [flags] bgp|gossip|ipam|kube|l2|load|proxy|scale [flags of the benchmark]
//	bench [flags] all
//	bench [flags] render [bgp|gossip|ipam|kube|l2|load|proxy|scale]...
//
// `make bench` runs all benchmarks, `make bench-bgp` and its like one. Render measures
// nothing: it makes the pages again, and marks those whose code has changed as old. `make
// generate` does that.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fanfare-lb/fanfare/e2e/bench/bgp"
	"github.com/fanfare-lb/fanfare/e2e/bench/gossip"
	"github.com/fanfare-lb/fanfare/e2e/bench/ipam"
	"github.com/fanfare-lb/fanfare/e2e/bench/kube"
	"github.com/fanfare-lb/fanfare/e2e/bench/l2"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/bench/proxy"
	"github.com/fanfare-lb/fanfare/e2e/bench/scale"
)

//go:generate go run . -source ../.. -o ../../docs/benchmarks render

// benchmarks are the subcommands. Each adds its flags and returns the benchmark.
var benchmarks = map[string]func(*flag.FlagSet, *measure.Inputs) measure.Run{
	"bgp": bgp.Flags, "gossip": gossip.Flags, "ipam": ipam.Flags, "kube": kube.Flags, "l2": l2.Flags,
	"load": bgp.LoadFlags, "proxy": proxy.Flags, "scale": scale.Flags,
}

// names are the subcommands in the order in which all run.
var names = slices.Sorted(maps.Keys(benchmarks))

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 3 && os.Args[1] == proxy.SetCommand {
		err = proxy.RunSet(ctx, os.Args[2], os.Stdout)
	} else {
		err = run(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	b := bench{progress: os.Stderr}
	common := flag.NewFlagSet("bench", flag.ExitOnError)
	common.StringVar(&b.in.Binary, "fanfare", "bin/fanfare", "program to measure")
	common.StringVar(&b.in.Source, "source", ".", "root of the repository")
	common.StringVar(&b.folder, "o", "docs/benchmarks", "folder of the pages; empty: none is written")
	common.BoolVar(&b.in.Quick, "quick", false, "check that it works, with few runs and numbers without meaning")
	_ = common.Parse(args) // ExitOnError
	var err error
	if b.in.Binary, err = filepath.Abs(b.in.Binary); err != nil {
		return err
	}
	rest := common.Args()
	if len(rest) == 0 {
		rest = []string{""}
	}
	switch name := rest[0]; name {
	case "all":
		return b.all(ctx)
	case "render":
		return b.render(rest[1:])
	default:
		if _, ok := benchmarks[name]; !ok {
			return fmt.Errorf("benchmark %q: want %s, all or render", name, strings.Join(names, ", "))
		}
		return b.one(ctx, name, rest[1:])
	}
}
