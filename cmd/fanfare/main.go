// Command fanfare gives Kubernetes LoadBalancer Services an address that the
// network can reach, and forwards every packet to a pod.
//
// `fanfare speaker` runs on every node, `fanfare controller` once, or twice for
// redundancy, where there is an API server. The other commands are for people. Each
// command has a file of its name. The other files:
//
//   - source.go: the flags that select the cluster's objects, and the source for them
//   - members.go, fastpath.go, snat.go: groups of flags, with their checks
//   - process.go: logs, metrics and signals
//
// A command checks its flags before it starts anything. An error names the flag, its
// value, and what would be valid. What a command does is in the package of its name; this
// one only connects flags with options.
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

// root returns the command line as a value, so that tests can run it and compare the
// flags in the manifests with it.
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
