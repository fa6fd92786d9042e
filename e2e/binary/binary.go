package binary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"

	"golang.org/x/sys/unix"
)

// Build builds cmd/fanfare of the current source at path. It takes five seconds of CPU
// time, and half a second if nothing has changed.
func Build(ctx context.Context, path string) error {
	root, err := sourceRoot()
	if err == nil {
		err = build(ctx, root, "fanfare", path)
	}
	if err != nil {
		return fmt.Errorf("the program: %w", err)
	}
	return nil
}

// schema is the version of the nftables table in proxy/nftables/upgrade.go.
var schema = regexp.MustCompile(`(?m)^const Schema = (\d+)$`)

// BuildNext builds the program as its next version will be: with another version of the
// nftables table, so that a speaker has to replace the table that it finds.
func BuildNext(ctx context.Context, path string) error {
	root, err := sourceRoot()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fanfare-next-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	const file = "proxy/nftables/upgrade.go"
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return err
	}
	next := schema.ReplaceAll(text, []byte("const Schema = ${1}1"))
	if bytes.Equal(next, text) {
		return fmt.Errorf("%s: no line %s", file, schema)
	}
	replaced, overlay := filepath.Join(dir, "upgrade.go"), filepath.Join(dir, "overlay.json")
	of, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, file): replaced}})
	err = errors.Join(err, os.WriteFile(replaced, next, 0o644), os.WriteFile(overlay, of, 0o644))
	if err == nil {
		err = build(ctx, root, "fanfare-next", path, "-overlay", overlay)
	}
	if err != nil {
		return fmt.Errorf("the program's next version: %w", err)
	}
	return nil
}

func sourceRoot() (string, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("BUG: no source file")
	}
	return filepath.Join(filepath.Dir(here), "..", ".."), nil
}

// build builds the program of a source at path.
func build(ctx context.Context, source, name, path string, flags ...string) error {
	root, err := sourceRoot()
	if err != nil {
		return err
	}
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
	built := filepath.Join(dir, name)
	// The flags are those of make build, for its build cache, but without the commit: another
	// commit of the same source needs no new link.
	args := append([]string{"build", "-trimpath", "-tags=grpcnotrace", "-buildvcs=false", "-o", built}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/fanfare")...)
	cmd.Dir = source
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
