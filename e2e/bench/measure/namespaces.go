package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A Prefix starts the names of a benchmark's namespaces. The process ID and a name follow,
// so that other runs know whether the owner still runs.
type Prefix string

// Name returns the name of a namespace of this process.
func (p Prefix) Name(what string) string {
	return string(p) + strconv.Itoa(os.Getpid()) + "-" + what
}

// Sweep removes the namespaces of crashed runs.
func (p Prefix) Sweep(ctx context.Context) error {
	paths, err := filepath.Glob("/run/netns/" + string(p) + "*")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		name := filepath.Base(path)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, string(p)), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			errs = append(errs, removeNamespace(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// Remove removes a namespace and closes its handle.
func Remove(ctx context.Context, n *lab.Namespace) error {
	return errors.Join(removeNamespace(ctx, n.Name), n.Close())
}

func removeNamespace(ctx context.Context, name string) error {
	if out, err := exec.CommandContext(ctx, "ip", "netns", "delete", name).CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns delete %s: %w: %s", name, err, out)
	}
	return nil
}
