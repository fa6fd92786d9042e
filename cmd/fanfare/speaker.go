package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/speaker"
)

// A speakerFlags value holds the flags of `fanfare speaker`, as the user wrote them. It shares
// groups with other commands, so that a flag means the same in each.
type speakerFlags struct {
	node       nodeFlags
	members    membersFlags
	fast       fastPathFlags
	monitoring monitoringFlags
	linger     time.Duration // after a withdrawal by BGP
	lingerL2   time.Duration // after this node stopped answering ARP and NDP
	refresh    time.Duration // of gratuitous ARP
	logLevel   string
	mode       string // of the proxy
}

// add defines the flags. manifests/speaker.yaml sets some of them, and must leave the pod
// enough time for the linger times.
func (f *speakerFlags) add(set *pflag.FlagSet) {
	f.node.add(set)
	f.members.add(set)
	f.fast.add(set)
	set.DurationVar(&f.linger, "linger-bgp", 5*time.Second,
		"how long an address is forwarded after its route was withdrawn")
	set.DurationVar(&f.lingerL2, "linger-l2", time.Minute,
		"how long an address is forwarded after this node has stopped answering for it by ARP and NDP")
	set.DurationVar(&f.refresh, "l2-refresh", 0,
		"interval of repeated announcements to neighbours (gratuitous ARP and NDP), for switches that forget; 0: never")
	f.monitoring.add(set, "7872")
	set.StringVar(&f.mode, "proxy-mode", string(proxy.ModeAuto),
		"nftables, iptables, or auto: nftables if it works, else iptables")
	set.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// check returns the first flag with an invalid value. Flags whose values are converted are
// checked by the functions that convert them.
func (f *speakerFlags) check() error {
	switch {
	case f.linger < 0:
		return fmt.Errorf("--linger-bgp %s: want zero or more", f.linger)
	case f.lingerL2 < 0:
		return fmt.Errorf("--linger-l2 %s: want zero or more", f.lingerL2)
	case f.refresh < 0 || f.refresh > 0 && f.refresh < time.Second:
		return fmt.Errorf("--l2-refresh %s: want zero, or a second or more", f.refresh)
	}
	if err := f.members.check(); err != nil {
		return err
	}
	return f.fast.check()
}

// options checks the flags and turns them into the options of a speaker. It sends no
// request to the API server yet, so that a speaker also starts while that is down.
func (f *speakerFlags) options(log *slog.Logger) (o speaker.Options, err error) {
	o = speaker.Options{
		MembersKeyFile: f.members.keyFile, MembersPort: f.members.port, LeaseInterval: f.members.lease,
		FastPath: f.fast.on, FastPathInterfaces: f.fast.interfaces, FastPathDir: f.fast.dir,
		RunDir: f.node.runDir, Linger: f.linger, LingerL2: f.lingerL2, RefreshL2: f.refresh,
		Log: log, Registry: registry(), Version: version(),
	}
	if o.Config, err = f.node.config(); err != nil {
		return o, err
	}
	if err := f.check(); err != nil {
		return o, err
	}
	if o.ProxyMode, err = proxy.ParseMode(f.mode); err != nil {
		return o, fmt.Errorf("--proxy-mode: %w", err)
	}
	api, err := f.node.api()
	if err != nil {
		return o, err
	}
	// A folder has no API server to report to.
	if api != nil {
		if o.Reporter, err = speaker.NewReporter(api, f.node.node, log); err != nil {
			return o, err
		}
	}
	if o.Leaser, err = f.members.leaser(api); err != nil {
		return o, err
	}
	// The API server, if there is one, decides who may read metrics.
	if o.Monitoring, err = f.monitoring.options(api); err != nil {
		return o, err
	}
	// Membership needs the InternalIPs of all nodes.
	f.node.allNodes = f.members.keyFile != ""
	// The speaker opens the source itself: it serves its status meanwhile.
	o.Open = func(ctx context.Context) (cluster.Source, func() bool, error) {
		return f.node.source(ctx, log, o.Registry)
	}
	return o, nil
}

// speakerCommand runs the agent of a node until SIGTERM. The rules in the kernel and the saved
// state remain for the next speaker; cleanupCommand removes them.
func speakerCommand() *cobra.Command {
	var flags speakerFlags
	cmd := &cobra.Command{
		Use:   "speaker",
		Short: "Forward and announce the addresses of LoadBalancer Services on this node",
		Long: `Forward and announce the addresses of LoadBalancer Services on this node.

It needs CAP_NET_ADMIN, for layer 2 CAP_NET_RAW, and for --fast-path CAP_BPF and
CAP_PERFMON. SIGTERM is a planned restart: routers with graceful restart keep
the routes, the kernel continues to forward, and the next speaker takes over;
other nodes take over the addresses of layer 2. If the Node has a taint that
says that it is leaving, SIGTERM withdraws everything and forwards for the
linger time first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(flags.logLevel)
			if err != nil {
				return err
			}
			o, err := flags.options(log)
			if err != nil {
				return err
			}
			// The second signal skips the linger times: a user may prefer a short interruption
			// to waiting a minute.
			ctx, kill, stop := signals(cmd.Context())
			defer stop()
			setGCPercent()
			return speaker.Run(ctx, kill, o)
		},
	}
	flags.add(cmd.Flags())
	return cmd
}
