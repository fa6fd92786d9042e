package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/fanfare-lb/fanfare/speaker"
)

func planCommand() *cobra.Command {
	var node nodeFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say what a speaker would do, and why",
		Long: `Say what the speaker of a node would do with a folder of YAML, or with what an
API server says, and why.

It reads and computes only: neither kernel nor network is touched, and it may
run anywhere, for any node.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := node.config()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			source, _, err := node.source(ctx, slog.New(slog.DiscardHandler), nil)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), speaker.Decide(config, source.Snapshot()))
			return err
		},
	}
	node.add(cmd.Flags())
	return cmd
}
