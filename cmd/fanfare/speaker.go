package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/watch"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/speaker"
)

const defaultRunDir = "/run/fanfare"

// A nodeFlags value holds the flags that decide what a node does: the same for the speaker
// and for a plan.
type nodeFlags struct {
	files       string
	kubeconfig  string
	node        string
	runDir      string
	detectLocal []string
	snat        snatFlags
	health      string
	classOnly   bool
	// allNodes: the source needs all Nodes, because speakers communicate.
	allNodes bool
}

func (f *nodeFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.files, "files", "", "folder of Kubernetes YAML to read instead of an API server; a file counts once it is renamed into it")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file to reach the API server with; the pod's service account when empty")
	set.StringVar(&f.node, "node-name", os.Getenv("NODE_NAME"), "name of this node's Node object; default $NODE_NAME")
	set.StringVar(&f.runDir, "run-dir", defaultRunDir, "folder for the socket and for state that outlives a restart")
	set.StringSliceVar(&f.detectLocal, "detect-local", []string{"node-cidr"},
		"which clients are pods of this node: node-cidr (the Node's podCIDRs), cidr=PREFIX, interface-prefix=NAME, bridge=NAME")
	f.snat.add(set)
	set.StringVar(&f.health, "health-check-node-ports", "labelled",
		"Services whose healthCheckNodePort is served: labelled (with service.kubernetes.io/service-proxy-name, which kube-proxy leaves alone), all (without kube-proxy) or none")
	set.BoolVar(&f.classOnly, "class-only", false, classOnlyUsage)
}

// config checks the flags and turns them into a speaker's configuration.
func (f *nodeFlags) config() (plan.Config, error) {
	c := plan.Config{Node: f.node}
	if f.node == "" {
		return c, errors.New("--node-name: missing; give the name of this node's Node object")
	}
	if f.files != "" && f.kubeconfig != "" {
		return c, errors.New("--files and --kubeconfig: give one of them; a speaker reads a folder or an API server")
	}
	if f.files != "" && f.classOnly {
		return c, errors.New("--files and --class-only: give one of them; Fanfare serves all Services of a folder")
	}
	for _, d := range f.detectLocal {
		if err := detect(&c, d); err != nil {
			return c, fmt.Errorf("--detect-local %q: %w", d, err)
		}
	}
	slices.SortFunc(c.DetectLocal.CIDRs, netip.Prefix.Compare)
	var ok bool
	if c.HealthChecks, ok = healthChecks[f.health]; !ok {
		return c, fmt.Errorf("--health-check-node-ports %q: want labelled, all or none", f.health)
	}
	var err error
	c.SNAT, err = f.snat.policy()
	return c, err
}

// healthChecks are the values of --health-check-node-ports.
var healthChecks = map[string]plan.HealthChecks{
	"labelled": plan.HealthChecksLabelled, "all": plan.HealthChecksAll, "none": plan.HealthChecksNone,
}

// detect adds one criterion of --detect-local.
func detect(c *plan.Config, criterion string) error {
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

// patience is how long a speaker waits for the API server before it uses the saved
// configuration. It must be well below the restart time during which routers keep the
// routes of a speaker.
const patience = 5 * time.Second

// source opens what the flags name: a folder, or an API server. fresh says whether the API
// server's objects are current; it is nil for a folder.
func (f *nodeFlags) source(ctx context.Context, log *slog.Logger, r prometheus.Registerer) (source cluster.Source, fresh func() bool, err error) {
	if f.files != "" {
		source, err = f.folder(ctx, log)
		return source, nil, err
	}
	config, err := f.api()
	if err != nil {
		return nil, nil, err
	}
	known := f.known(log)
	open := func(ctx context.Context) (cluster.Source, error) {
		// A speaker that uses only BGP and has no members needs its own Node only.
		one := f.node
		if f.allNodes {
			one = ""
		}
		return watch.OpenAPI(ctx, config, watch.Options{NodeName: one, L2: watch.L2Nodes, ReadOnly: true, SkipNamespaces: true, SkipServiceCIDRs: true, ClassOnly: f.classOnly, Known: known, Log: log, Registerer: r})
	}
	standby, err := watch.OpenStandby(ctx, speaker.ClusterPath(f.runDir), patience, log, open)
	if err != nil {
		return nil, nil, err
	}
	return ipam.NewReader(standby), standby.Fresh, nil
}

// known are the last valid versions of the objects, saved by the previous speaker. Without
// them, an invalid object announces nothing.
func (f *nodeFlags) known(log *slog.Logger) *cluster.Configuration {
	known, err := speaker.Configuration(f.runDir)
	if err != nil {
		log.Error("cannot read the saved configuration", "err", err)
	}
	return known
}

// api returns the configuration for the API server.
func (f *nodeFlags) api() (*rest.Config, error) {
	config, err := apiConfig(f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("no --files, and no API server: %w", err)
	}
	return config, nil
}

// reporter returns nil for a folder: there is no API server to report to.
func (f *nodeFlags) reporter(log *slog.Logger) (*speaker.Reporter, error) {
	if f.files != "" {
		return nil, nil
	}
	config, err := f.api()
	if err != nil {
		return nil, err
	}
	return speaker.NewReporter(config, f.node, log)
}

// folder reads the folder and allocates addresses as a controller would, remembering those
// of the last run.
func (f *nodeFlags) folder(ctx context.Context, log *slog.Logger) (cluster.Source, error) {
	held, err := speaker.Assignments(f.runDir)
	if err != nil {
		log.Error("cannot read the saved addresses; Services may get others than before", "err", err)
	}
	files, err := watch.OpenFiles(ctx, f.files, f.known(log), log)
	if err != nil {
		return nil, err
	}
	return ipam.NewSource(files, held), nil
}

func speakerCommand() *cobra.Command {
	var (
		node     nodeFlags
		linger   time.Duration
		lingerL2 time.Duration
		refresh  time.Duration
		listen   string
		logLevel string
		mode     string
		members  membersFlags
		fast     fastPathFlags
	)
	cmd := &cobra.Command{
		Use:   "speaker",
		Short: "Forward and announce the addresses of LoadBalancer Services on this node",
		Long: `Forward and announce the addresses of LoadBalancer Services on this node.

It needs CAP_NET_ADMIN, for layer 2 CAP_NET_RAW, and for --fast-path CAP_BPF and
CAP_PERFMON. SIGTERM is a planned
restart: routers with graceful restart keep the routes, the kernel goes on
forwarding, and the next speaker takes over; other nodes answer for what this one
answered for by ARP and NDP. If the Node carries a taint that says it is going
away, SIGTERM withdraws everything and forwards for the linger time first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := node.config()
			if err != nil {
				return err
			}
			if linger < 0 {
				return fmt.Errorf("--linger-bgp %s: want zero or more", linger)
			}
			if lingerL2 < 0 {
				return fmt.Errorf("--linger-l2 %s: want zero or more", lingerL2)
			}
			if refresh < 0 || refresh > 0 && refresh < time.Second {
				return fmt.Errorf("--l2-refresh %s: want zero, or a second or more", refresh)
			}
			proxyMode, err := proxy.ParseMode(mode)
			if err != nil {
				return fmt.Errorf("--proxy-mode: %w", err)
			}
			log, err := logger(logLevel)
			if err != nil {
				return err
			}
			if err := members.check(); err != nil {
				return err
			}
			if err := fast.check(); err != nil {
				return err
			}
			node.allNodes = members.keyFile != ""
			ctx, kill, stop := signals(cmd.Context())
			defer stop()
			saveMemory()
			metrics := registry()
			reporter, err := node.reporter(log)
			if err != nil {
				return err
			}
			leaser, err := node.leaser(members)
			if err != nil {
				return err
			}
			return speaker.Run(ctx, kill, speaker.Options{
				MembersKeyFile: members.keyFile, MembersPort: members.port, Leaser: leaser, LeaseInterval: members.lease,
				FastPath: fast.on, FastPathInterfaces: fast.interfaces, FastPathDir: fast.dir,
				Config: config, ProxyMode: proxyMode, RunDir: node.runDir, Linger: linger, LingerL2: lingerL2, RefreshL2: refresh, Listen: listen, Reporter: reporter,
				Open: func(ctx context.Context) (cluster.Source, func() bool, error) { return node.source(ctx, log, metrics) },
				Log:  log, Registry: metrics, Version: version(),
			})
		},
	}
	node.add(cmd.Flags())
	members.add(cmd.Flags())
	fast.add(cmd.Flags())
	cmd.Flags().DurationVar(&linger, "linger-bgp", 5*time.Second, "how long an address is forwarded after its route was withdrawn")
	cmd.Flags().DurationVar(&lingerL2, "linger-l2", time.Minute, "how long an address is forwarded after this node has stopped answering for it by ARP and NDP")
	cmd.Flags().DurationVar(&refresh, "l2-refresh", 0, "interval at which an address is announced to neighbours again (gratuitous ARP), for switches that forget; 0: never")
	cmd.Flags().StringVar(&listen, "metrics-address", "", "TCP address for /metrics, /healthz and /readyz, such as :7472; empty for none")
	cmd.Flags().StringVar(&mode, "proxy-mode", string(proxy.ModeAuto), "what forwards: nftables, iptables, or auto: nftables where it works, else iptables")
	cmd.Flags().StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// saveMemory makes the garbage collector run when the heap has grown by half, not when it
// has doubled: every node pays for a speaker's memory all the time, and for its CPU time
// only while Services change. GOGC in the environment takes precedence.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
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

// signals returns a context that ends with the first SIGTERM or SIGINT, and one that ends
// with the second, for users who cannot wait.
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
