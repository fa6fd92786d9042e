package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/watch"
	"github.com/fanfare-lb/fanfare/l2"
)

// planCommand prints a decision without applying it. It shares flags and plan.Decide with the
// speaker, so that a plan shows what the speaker would do. It does not know a speaker's memory,
// such as lingering addresses and the hold-down of a node that returns.
func planCommand() *cobra.Command {
	var (
		flags   nodeFlags
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a speaker would do, and why",
		Long: `Show what the speaker of a node would do with a folder of YAML, or with the
objects of an API server, and why.

The command only reads: it changes neither the kernel nor the network, and runs
anywhere, for any node, with any account that may list what a speaker lists. On
the node itself, which has one of the Node's InternalIPs, the plan uses the
interfaces that can answer over layer 2. For other nodes it assumes that they
have the right interfaces. It assumes that routers accept their sessions, too,
and lists each assumption.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := flags.config()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			source, err := flags.liveSource(ctx)
			if err != nil {
				return err
			}
			// The interfaces are known on the node itself only; nil means unknown.
			snap := source.Snapshot()
			if config.Interfaces, err = interfacesOf(config.Node, snap); err != nil {
				return err
			}
			// Without a last Desired and without members: what a speaker decides at its start, while
			// all nodes live.
			d := plan.Decide(config, snap)
			_, err = fmt.Fprint(cmd.OutOrStdout(), d, unserved(snap.Unserved), assumptions(config, snap, d))
			return err
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the API server")
	return cmd
}

// maxUnserved is how many objects that are not served a plan lists: another implementation may serve thousands.
const maxUnserved = 20

// unserved lists the objects that are not served.
func unserved(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	more := ""
	if n := len(lines) - maxUnserved; n > 0 {
		lines, more = lines[:maxUnserved], fmt.Sprintf("  and %d more\n", n)
	}
	return "not served\n  " + strings.Join(lines, "\n  ") + "\n" + more
}

// assumptions lists what a plan takes for granted: if an assumption is wrong, a router has no route, or another
// node answers over layer 2.
func assumptions(c plan.Config, snap *cluster.Snapshot, d *plan.Desired) string {
	var text strings.Builder
	for _, s := range d.BGP.Sessions {
		fmt.Fprintf(&text, "  the session with router %s is established: %s\n", s.Name,
			strings.Join(sessionNeeds(s), ", "))
	}
	if d.UsesL2 && c.Interfaces == nil {
		fmt.Fprintf(&text, "  node %s has an interface for each address: unknown, because this "+
			"machine is not the node\n", c.Node)
	}
	if d.UsesL2 && len(snap.Nodes) > 1 {
		text.WriteString("  the speakers of all other nodes run, and each has an interface for each address: " +
			"`fanfare status` on a node shows the facts\n")
	}
	if text.Len() == 0 {
		return ""
	}
	return "assumed\n" + text.String()
}

// sessionNeeds returns what must be so that a session is established.
func sessionNeeds(s bgp.Session) (needs []string) {
	if s.External {
		needs = append(needs, fmt.Sprintf("its AS number is another than %d", s.LocalASN))
	} else {
		needs = append(needs, fmt.Sprintf("its AS number is %d", s.PeerASN))
	}
	needs = append(needs, fmt.Sprintf("it expects this node with AS number %d", s.LocalASN))
	external := s.External || s.PeerASN != s.LocalASN
	switch hops := max(s.EBGPMultihopTTL, s.TTLSecurityHops); {
	case s.Interface != "":
		needs = append(needs, "it is the router on "+s.Interface)
	case external && hops <= 1:
		needs = append(needs, "it is on a link of the node, since ebgpMultihopTTL is not set")
	case external:
		needs = append(needs, fmt.Sprintf("it is at most %d hops away", hops))
	}
	if s.Password != "" {
		needs = append(needs, "it has the same password")
	}
	return needs
}

// interfacesOf returns the interfaces of a node if this machine is that node, else nil: they are
// unknown. It recognises the node by its InternalIPs, because --node-name may name any node.
func interfacesOf(node string, snap *cluster.Snapshot) ([]l2.Interface, error) {
	here, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this machine: %w", err)
	}
	for _, n := range snap.Nodes {
		if n.Name == node && slices.ContainsFunc(here, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && slices.Contains(n.InternalIPs, p.Addr().Unmap())
		}) {
			return l2.ListInterfaces()
		}
	}
	return nil, nil
}

// liveSource opens the source that the flags name. From an API server it uses nothing that a
// speaker saved: a plan must not show yesterday's cluster.
func (f *nodeFlags) liveSource(ctx context.Context) (cluster.Source, error) {
	// Problems of objects are part of the plan, so logs would repeat them.
	quiet := slog.New(slog.DiscardHandler)
	if f.files != "" {
		return f.folder(quiet, func(known *cluster.Configuration) (*watch.Files, error) {
			return watch.ReadFiles(f.files, known, cluster.Scope{Unserved: true}, quiet)
		})
	}
	config, err := f.api()
	if err != nil {
		return nil, err
	}
	// All Nodes, also where a speaker watches its own only: a plan says which selector
	// matches no Node.
	api, err := watch.OpenAPI(ctx, config, watch.Options{
		Scope: cluster.Scope{ReadOnly: true, Unserved: true, NoSecrets: true, Classes: f.classes},
		L2:    watch.L2Nodes, Log: quiet,
	})
	if err != nil {
		return nil, err
	}
	return ipam.NewReader(api), nil
}
