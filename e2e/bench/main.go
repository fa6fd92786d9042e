// Command bench measures Fanfare, and writes its results to a page of
// docs/benchmarks:
//
//	bench [flags] bgp|ipam|kube|l2|proxy|scale [flags of the benchmark]
//
// `make bench-bgp` and its like run it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/fanfare-lb/fanfare/e2e/bench/bgp"
	"github.com/fanfare-lb/fanfare/e2e/bench/ipam"
	"github.com/fanfare-lb/fanfare/e2e/bench/kube"
	"github.com/fanfare-lb/fanfare/e2e/bench/l2"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/bench/proxy"
	"github.com/fanfare-lb/fanfare/e2e/bench/scale"
)

// benchmarks are the subcommands. Each adds its flags and returns its run function.
var benchmarks = map[string]func(*flag.FlagSet, *measure.Inputs) measure.Run{
	"bgp": bgp.Flags, "ipam": ipam.Flags, "kube": kube.Flags, "l2": l2.Flags, "proxy": proxy.Flags, "scale": scale.Flags,
}

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
	var in measure.Inputs
	common := flag.NewFlagSet("bench", flag.ExitOnError)
	common.StringVar(&in.Binary, "fanfare", "bin/fanfare", "program to measure")
	common.StringVar(&in.Source, "source", ".", "root of the repository")
	output := common.String("o", "docs/benchmarks", "folder of the page; empty: none")
	common.BoolVar(&in.Quick, "quick", false, "check that it works, with few runs and numbers without meaning")
	_ = common.Parse(args) // ExitOnError
	name := common.Arg(0)
	flags, ok := benchmarks[name]
	if !ok {
		return fmt.Errorf("benchmark %q: want bgp, ipam, kube, l2, proxy or scale", name)
	}
	own := flag.NewFlagSet("bench "+name, flag.ExitOnError)
	measured := flags(own, &in)
	_ = own.Parse(common.Args()[1:])
	var err error
	if in.Binary, err = filepath.Abs(in.Binary); err != nil {
		return err
	}
	text, err := measured(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	page := ""
	if *output != "" {
		page = filepath.Join(*output, name+".md")
	}
	return measure.Publish(page, text)
}
