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

// main prints an error as one line, without the usage, and exits with status 1.
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
		Use:   "fanfare",
		Short: "Addresses for LoadBalancer Services: announced once they work, forwarded until clients have moved",
		// An error is one line that says what to do: usage would push it off the screen.
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	cmd.AddCommand(controllerCommand(), speakerCommand(), statusCommand(), routesCommand(), planCommand(),
		migrateCommand(), cleanupCommand(), hookCommand())
	return cmd
}

// release is the version of a release, set by the linker (-X main.release).
var release string

// version returns the release's version, or the Git revision that the Go toolchain has recorded
// in the binary. Logs, the status and the user agent of requests have it.
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
