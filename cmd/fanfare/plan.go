package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/speaker"
)

func planCommand() *cobra.Command {
	var (
		node    nodeFlags
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say what a speaker would do, and why",
		Long: `Say what the speaker of a node would do with a folder of YAML, or with what an
API server says, and why.

It reads and computes only: neither kernel nor network is touched, and it may
run anywhere, for any node, with whatever account may list what a speaker lists.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := node.config()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			source, err := node.now(ctx)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), speaker.Decide(config, source.Snapshot()))
			return err
		},
	}
	node.add(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the API server")
	return cmd
}

// now opens what the flags say, as it is: what a speaker remembers for a start
// without the API server would be a plan for yesterday.
func (f *nodeFlags) now(ctx context.Context) (cluster.Source, error) {
	quiet := slog.New(slog.DiscardHandler)
	if f.files != "" {
		return f.folder(ctx, quiet)
	}
	config, err := f.api()
	if err != nil {
		return nil, err
	}
	api, err := cluster.OpenAPI(ctx, config, cluster.Options{NodeName: f.node, L2: cluster.L2Nodes, ReadOnly: true, SkipNamespaces: true, SkipServiceCIDRs: true, SkipSecrets: true, ClassOnly: f.classOnly, Log: quiet})
	if err != nil {
		return nil, err
	}
	return ipam.NewReader(api), nil
}
