package binary

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Concurrent builds each get a working binary.
func TestBuildConcurrently(t *testing.T) {
	if testing.Short() {
		t.Skip("links a program")
	}
	dir := t.TempDir()
	all, ctx := errgroup.WithContext(t.Context())
	for i := range 3 {
		all.Go(func() error { return buildAndRun(ctx, filepath.Join(dir, fmt.Sprint(i))) })
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

func buildAndRun(ctx context.Context, path string) error {
	if err := Build(ctx, path); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err == nil && !strings.HasPrefix(string(out), "fanfare version ") {
		err = fmt.Errorf("--version: %s", out)
	}
	return err
}
