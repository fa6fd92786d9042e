// Command lab builds the laboratory, runs the scenario in it, and removes it: `make lab`
// and `make lab-down` run it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "lab",
		Short:             "The laboratory: a router, three nodes, pods and a client on this machine",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	cmd.AddCommand(upCommand(), downCommand(), podCommand())
	return cmd
}

func upCommand() *cobra.Command {
	var (
		o    lab.Options
		keep bool
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Build the lab and run the scenario; it fails unless every step has its expected result",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return up(cmd.Context(), o, keep) },
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the lab up and explain how to look around")
	cmd.Flags().StringVar(&o.ID, "id", "lab", "name of the lab; its namespaces are called ff-NAME-NODE")
	cmd.Flags().StringVar(&o.Topology, "topology", "e2e/containerlab/fanfare.clab.yml", "containerlab file to build")
	cmd.Flags().StringVar(&o.Objects, "objects", "e2e/containerlab/cluster",
		"folder of YAML that the cluster starts with")
	cmd.Flags().StringVar(&o.Binary, "fanfare", "bin/fanfare", "the fanfare program")
	return cmd
}

func up(ctx context.Context, o lab.Options, keep bool) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and FRR need root: sudo make lab")
	}
	if o.Binary, err = filepath.Abs(o.Binary); err != nil {
		return err
	}
	began := time.Now()
	l, err := lab.Up(ctx, o)
	if err != nil {
		return err
	}
	fmt.Printf("The lab is up after %.2f s: %s, built out of network namespaces.\n", time.Since(began).Seconds(),
		o.Topology)
	result := lab.Scenario(ctx, os.Stdout, l)
	if keep && ctx.Err() == nil {
		return errors.Join(result, leave(ctx, l))
	}
	if err := l.Down(); err != nil {
		return errors.Join(result, err)
	}
	if result == nil {
		fmt.Printf("\nEvery step had its expected result, in %.0f s. The lab is down again.\n",
			time.Since(began).Seconds())
	}
	return result
}

// leave leaves the lab up with Services to try.
func leave(ctx context.Context, l *lab.Lab) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	guide, err := l.Guide(ctx)
	if err != nil {
		return errors.Join(err, l.Down())
	}
	if err := l.Keep(self); err != nil {
		return errors.Join(err, l.Down())
	}
	fmt.Print("\n", guide)
	return nil
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove every trace of labs that were left up or have crashed",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			removed, err := lab.Sweep(true)
			for _, id := range removed {
				fmt.Printf("removed lab %s: its processes, namespaces and files\n", id)
			}
			return err
		},
	}
}

func podCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pod NAME",
		Short: "Run a pod: answer HTTP and echo until stopped",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return lab.ServePod(cmd.Context(), args[0]) },
	}
}
