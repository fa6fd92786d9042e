package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// cleanupCommand removes the kernel's tables and the state directory, for a node that
// leaves the cluster or gets another implementation. A running speaker would program the
// kernel again, so the command refuses while the lock is held.
func cleanupCommand() *cobra.Command {
	var (
		runDir, fastPathDir string
		wait                bool
	)
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that a speaker left on this node",
		Long: `Remove everything that a speaker left on this node: its table in the kernel, its
chain in iptables where that drops by default, its fast path, and its saved state.
Traffic that routers still send here is no longer forwarded. The command refuses
while a speaker runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rundir.Running(runDir) {
				return fmt.Errorf("a speaker runs with the run directory %s: stop it first", runDir)
			}
			// Each part is removed even if another one fails. The fast path goes first: it takes
			// new flows without regard to the rules.
			if err := errors.Join(fastpath.Cleanup(cmd.Context(), fastPathDir), proxy.Cleanup(cmd.Context()),
				rundir.Cleanup(runDir)); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "removed everything of Fanfare from this node")
			// A DaemonSet restarts a container that ends, so that its pod would never be ready.
			if wait {
				first, _, stop := signals(cmd.Context())
				defer stop()
				<-first.Done()
			}
			return err
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", defaultRunDir, "the speaker's run directory")
	cmd.Flags().BoolVar(&wait, "wait", false, "run until the process is ended, as a pod of a DaemonSet must")
	addFastPathDir(cmd.Flags(), &fastPathDir)
	return cmd
}
