// Command fanfare gives Kubernetes LoadBalancer Services an address that the
// network can reach, and carries every packet to its pod.
//
// `fanfare speaker` runs on every node, `fanfare controller` once, or twice for
// safety, where there is an API server. The other commands are for people:
// status, routes, plan and cleanup.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func main() {
	if err := root().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "fanfare:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "fanfare",
		Short:         "Addresses for LoadBalancer Services: announced once they work, forwarded until clients have moved",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	cmd.AddCommand(controllerCommand(), speakerCommand(), statusCommand(), routesCommand(), planCommand(), cleanupCommand())
	return cmd
}

// release is set by the linker for a release.
var release string

// version is the release's, or what the Go toolchain noted about the build.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel " + s.Value[:12]
		}
	}
	return "devel"
}
