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

// Build puts cmd/fanfare at path, as the source is now. It takes five seconds of a
// processor, and half a second where nothing has changed since the last time.
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
	defer lock.Close() // and with that it is unlocked
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	built := filepath.Join(dir, "fanfare")
	// As make build does, which has compiled all packages already, but without the
	// commit: another one with the same source is no reason to link again.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=grpcnotrace", "-buildvcs=false", "-o", built, "./cmd/fanfare")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return clone(built, path)
}

// clone gives a file a second name, or copies it to another file system: a test that
// runs it keeps it when the first one is replaced.
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
