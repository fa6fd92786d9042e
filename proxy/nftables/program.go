package nftables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// newerDir is where the image has the nft of a newer Debian release, with its own loader and libraries.
const newerDir = "/usr/lib/fanfare/nft"

// Installed are the commands of the image. A host may have only the first one.
func Installed() [][]string {
	return [][]string{{"nft"}, {newerDir + "/ld.so", "--library-path", newerDir, newerDir + "/nft"}}
}

// An NFT runs the first of several versions of nft, and after a crash the next one, until the process ends.
//
// The oldest is the first, because other programs of the node with as old an nft can read what it writes:
// see docs/reference/nft-versions.md. NFT does not go back to it: each attempt could crash, and leave a
// core dump. Calls must not be concurrent.
type NFT struct {
	Commands [][]string // program and first arguments; missing ones are skipped
	// Crashed is called after a crash, with a sentence about the command that is used from now on; empty
	// if there is none.
	Crashed func(replaced string)

	at int // what was before has crashed
}

// errCrashed means that a signal ended nft. Before it loads rules, nft lists what exists, and versions up
// to 1.1.1 end by a segmentation fault at sets that 1.1.2 or later has written.
var errCrashed = errors.New("nft crashed: it cannot read a table of this node that a newer nft has written, " +
	"such as kube-proxy's. " +
	"Use an nft that is at least as new as the writer's, or set --proxy-mode to iptables")

// load runs an nft script as one transaction.
func (n *NFT) load(ctx context.Context, script string) error {
	_, err := n.run(ctx, script, "-f", "-")
	return err
}

// check makes the kernel check a script without changing anything.
func (n *NFT) check(ctx context.Context, script string) error {
	_, err := n.run(ctx, script, "-c", "-f", "-")
	return err
}

// run runs nft with a script as its input, and returns what it wrote.
func (n *NFT) run(ctx context.Context, script string, args ...string) (string, error) {
	for {
		i, err := n.find(n.at)
		if err != nil {
			return "", err
		}
		out, err := start(ctx, n.Commands[i], script, args...)
		if !errors.Is(err, errCrashed) || !n.replace(ctx, i) {
			return out, err
		}
	}
}

// find returns the first command that exists, from an index on.
func (n *NFT) find(from int) (int, error) {
	for i, c := range n.Commands[from:] {
		if _, err := exec.LookPath(c[0]); err == nil {
			return from + i, nil
		}
	}
	return 0, fmt.Errorf("there is no program nft, which loads the rules: %w", exec.ErrNotFound)
}

// replace selects the command after one that crashed, and reports whether there is one.
func (n *NFT) replace(ctx context.Context, crashed int) bool {
	next, err := n.find(crashed + 1)
	if err != nil {
		n.Crashed("")
		return false
	}
	n.at = next
	older, newer := version(ctx, n.Commands[crashed]), version(ctx, n.Commands[next])
	n.Crashed(fmt.Sprintf("nft %s crashed at a table that a newer nft has written, such as kube-proxy's: the "+
		"speaker uses nft %s. "+
		"Other programs of this node with nft %[1]s, such as firewalld, crash as well", older, newer))
	return true
}

// version is what a command calls itself, such as 1.0.6.
func version(ctx context.Context, command []string) string {
	out, err := start(ctx, command, "", "--version")
	if words := strings.Fields(out); err == nil && len(words) > 1 {
		return strings.TrimPrefix(words[1], "v")
	}
	return command[len(command)-1]
}

// start runs one command. The output contains the place of a mistake, the exit status does not.
func start(ctx context.Context, command []string, script string, args ...string) (string, error) {
	out, err := renderer.Run(ctx, script, command[0], slices.Concat(command[1:], args)...)
	switch {
	case err == nil:
		return out, nil
	case hasCrashed(err):
		return "", fmt.Errorf("%w: %w", errCrashed, err)
	}
	return "", fmt.Errorf("nft: %w", err)
}

// hasCrashed reports whether a program ended by its own fault. SIGKILL comes from outside, for example
// from the kernel when memory is short.
func hasCrashed(err error) bool {
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && slices.Contains([]syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS,
		syscall.SIGABRT}, status.Signal())
}
