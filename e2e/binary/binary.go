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
	"strings"

	"golang.org/x/sys/unix"
)

// Build builds cmd/fanfare of the current source at path. It takes five seconds of CPU
// time, and half a second if nothing has changed.
func Build(ctx context.Context, path string) error {
	root, err := SourceRoot(ctx)
	if err == nil {
		err = buildFanfare(ctx, root, "fanfare", path)
	}
	if err != nil {
		return fmt.Errorf("the program: %w", err)
	}
	return nil
}

// BuildCoreDNS builds e2e/lab/coredns at path. The first time takes some 20 seconds of CPU time,
// and it may download modules.
func BuildCoreDNS(ctx context.Context, path string) error {
	root, err := SourceRoot(ctx)
	if err == nil {
		err = build(ctx, filepath.Join(root, "e2e/lab/coredns"), "coredns", path, ".")
	}
	if err != nil {
		return fmt.Errorf("CoreDNS: %w", err)
	}
	return nil
}

// schema is the version of the nftables table in proxy/nftables/upgrade.go.
var schema = regexp.MustCompile(`(?m)^const Schema = (\d+)$`)

// BuildNext builds the program as its next version will be: with another version of the
// nftables table, so that a speaker has to replace the table that it finds.
func BuildNext(ctx context.Context, path string) error {
	root, err := SourceRoot(ctx)
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
		err = buildFanfare(ctx, root, "fanfare-next", path, "-overlay", overlay)
	}
	if err != nil {
		return fmt.Errorf("the program's next version: %w", err)
	}
	return nil
}

// SourceRoot returns the folder of this module's sources. The working directory must be in them.
// The binary that runs does not say where they are: it may be built with -trimpath.
func SourceRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fanfare-lb/fanfare").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// buildFanfare builds cmd/fanfare of a source at path. The flags are those of make build, for its
// build cache, but without the commit: another commit of the same source needs no new link.
func buildFanfare(ctx context.Context, source, name, path string, flags ...string) error {
	return build(ctx, source, name, path, append(flags, "-tags=grpcnotrace", "./cmd/fanfare")...)
}

// build runs go build in a directory. It keeps the result in bin/test as name, because Go does not
// link a program again that is there already.
func build(ctx context.Context, dir, name, path string, args ...string) error {
	root, err := SourceRoot(ctx)
	if err != nil {
		return err
	}
	kept := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(kept, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close() // closing unlocks it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	built := filepath.Join(kept, name)
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-buildvcs=false", "-o", built},
		args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
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
