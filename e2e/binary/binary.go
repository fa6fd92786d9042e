package binary

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Build builds cmd/fanfare of the current source at path. It takes five seconds of CPU
// time, and half a second if nothing has changed.
func Build(ctx context.Context, path string) error {
	if err := build(ctx, path); err != nil {
		return fmt.Errorf("the program: %w", err)
	}
	return nil
}

func build(ctx context.Context, path string) (err error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return errors.New("BUG: no source file")
	}
	root := filepath.Join(filepath.Dir(here), "..", "..")
	dir := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close() // closing unlocks it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	built := filepath.Join(dir, "fanfare")
	// The flags are those of make build, for its build cache, but without the commit: another
	// commit of the same source needs no new link.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=grpcnotrace", "-buildvcs=false", "-o", built, "./cmd/fanfare")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return clone(built, path)
}

// clone links or copies the file, so that a test keeps its binary when the original is
// replaced.
func clone(from, to string) (err error) {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
