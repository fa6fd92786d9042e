package binary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
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

// The next version works, and has another schema.
func TestBuildNextVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("links a program")
	}
	now, next := filepath.Join(t.TempDir(), "now"), filepath.Join(t.TempDir(), "next")
	if err := errors.Join(Build(t.Context(), now), BuildNext(t.Context(), next)); err != nil {
		t.Fatal(err)
	}
	a, errA := os.ReadFile(now)
	b, errB := os.ReadFile(next)
	if err := errors.Join(errA, errB); err != nil || bytes.Equal(a, b) {
		t.Errorf("the next version is this one (%v)", err)
	}
	if out, err := exec.CommandContext(t.Context(), next, "--version").CombinedOutput(); err != nil {
		t.Errorf("--version: %v: %s", err, out)
	}
}
