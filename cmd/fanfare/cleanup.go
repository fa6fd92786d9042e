package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/speaker"
)

func cleanupCommand() *cobra.Command {
	var (
		runDir, fastPathDir string
		wait                bool
	)
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that a speaker left on this node",
		Long: `Remove everything that a speaker left on this node: its table in the kernel, its
chain in iptables where that drops by default, its fast path, and what it remembers. Addresses that routers still send here are no longer
forwarded. It refuses while a speaker runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if speaker.Running(runDir) {
				return fmt.Errorf("a speaker runs with the run directory %s; stop it first", runDir)
			}
			if err := errors.Join(fastpath.Cleanup(cmd.Context(), fastPathDir), proxy.Cleanup(cmd.Context()), speaker.Forget(runDir)); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "nothing of Fanfare is left on this node")
			if wait {
				stop := make(chan os.Signal, 1)
				signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
				<-stop
			}
			return err
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", defaultRunDir, "the speaker's run directory")
	cmd.Flags().BoolVar(&wait, "wait", false, "run until the process is ended, as a pod of a DaemonSet must")
	addFastPathDir(cmd.Flags(), &fastPathDir)
	return cmd
}
