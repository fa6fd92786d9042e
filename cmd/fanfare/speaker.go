package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/speaker"
)

const defaultRunDir = "/run/fanfare"

// A nodeFlags value holds the flags that decide what a node does: the same for
// the speaker and for a plan of what it would do.
type nodeFlags struct {
	files       string
	node        string
	runDir      string
	detectLocal []string
}

func (f *nodeFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.files, "files", "", "folder of Kubernetes YAML to read; a file counts once it is renamed into it")
	set.StringVar(&f.node, "node-name", os.Getenv("NODE_NAME"), "name of this node's Node object; default $NODE_NAME")
	set.StringVar(&f.runDir, "run-dir", defaultRunDir, "folder for the socket and for what is remembered until the next start")
	set.StringSliceVar(&f.detectLocal, "detect-local", []string{"node-cidr"},
		"which clients are pods of this node: node-cidr (the Node's podCIDRs), cidr=PREFIX, interface-prefix=NAME, bridge=NAME")
}

// config checks the flags and turns them into a speaker's configuration.
func (f *nodeFlags) config() (speaker.Config, error) {
	c := speaker.Config{Node: f.node}
	if f.node == "" {
		return c, errors.New("--node-name: missing; give the name of this node's Node object")
	}
	if f.files == "" {
		return c, errors.New("--files: missing; give a folder of Kubernetes YAML")
	}
	for _, d := range f.detectLocal {
		if err := detect(&c, d); err != nil {
			return c, fmt.Errorf("--detect-local %q: %w", d, err)
		}
	}
	slices.SortFunc(c.DetectLocal.CIDRs, netip.Prefix.Compare)
	return c, nil
}

// detect adds one criterion of --detect-local.
func detect(c *speaker.Config, criterion string) error {
	kind, value, _ := strings.Cut(criterion, "=")
	if kind != "node-cidr" && value == "" {
		return errors.New("want node-cidr, cidr=PREFIX, interface-prefix=NAME or bridge=NAME")
	}
	switch kind {
	case "node-cidr":
		c.NodeCIDR = true
	case "cidr":
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return fmt.Errorf("want a prefix such as 10.244.0.0/16: %w", err)
		}
		c.DetectLocal.CIDRs = append(c.DetectLocal.CIDRs, p.Masked())
	case "interface-prefix":
		c.DetectLocal.InterfacePrefix = value
	case "bridge":
		c.DetectLocal.Bridge = value
	default:
		return errors.New("want node-cidr, cidr=PREFIX, interface-prefix=NAME or bridge=NAME")
	}
	return nil
}

// source reads the folder and gives out addresses as a controller would,
// remembering those of the last run.
func (f *nodeFlags) source(ctx context.Context, log *slog.Logger) (cluster.Source, error) {
	held, err := speaker.Held(f.runDir)
	if err != nil {
		return nil, err
	}
	files, err := cluster.OpenFiles(ctx, f.files, log)
	if err != nil {
		return nil, err
	}
	return ipam.NewSource(files, held), nil
}

func speakerCommand() *cobra.Command {
	var (
		node     nodeFlags
		linger   time.Duration
		listen   string
		logLevel string
	)
	cmd := &cobra.Command{
		Use:   "speaker",
		Short: "Forward and announce the addresses of LoadBalancer Services on this node",
		Long: `Forward and announce the addresses of LoadBalancer Services on this node.

It needs CAP_NET_ADMIN. SIGTERM is a planned restart: routers with graceful
restart keep the routes, the kernel goes on forwarding, and the next speaker
takes over. If the Node carries a taint that says it is going away, SIGTERM
withdraws everything and forwards for the linger time first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := node.config()
			if err != nil {
				return err
			}
			if linger < 0 {
				return fmt.Errorf("--linger-bgp %s: want zero or more", linger)
			}
			log, err := logger(logLevel)
			if err != nil {
				return err
			}
			ctx, kill, stop := signals(cmd.Context())
			defer stop()
			source, err := node.source(ctx, log)
			if err != nil {
				return err
			}
			return speaker.Run(ctx, kill, speaker.Options{
				Config: config, RunDir: node.runDir, Linger: linger, Listen: listen,
				Source: source, Log: log, Registry: registry(), Version: version(),
			})
		},
	}
	node.add(cmd.Flags())
	cmd.Flags().DurationVar(&linger, "linger-bgp", 5*time.Second, "how long an address is forwarded after its route was withdrawn")
	cmd.Flags().StringVar(&listen, "metrics-address", "", "TCP address for /metrics, /healthz and /readyz, such as :7472; empty for none")
	cmd.Flags().StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

func logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

func registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// signals returns a context that ends with the first SIGTERM or SIGINT and one
// that ends with the second, for whoever cannot wait.
func signals(parent context.Context) (first, second context.Context, stop func()) {
	if parent == nil {
		parent = context.Background()
	}
	second, kill := context.WithCancel(parent)
	first, begin := context.WithCancel(second)
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for _, end := range []func(){begin, kill} {
			select {
			case <-c:
				end()
			case <-second.Done():
				return
			}
		}
	}()
	return first, second, func() { signal.Stop(c); kill() }
}
