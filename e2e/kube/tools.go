package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fanfare-lb/fanfare/e2e/binary"
)

// Tools returns the path of the binary that contains all Kubernetes programs, selected by
// its first argument. If it does not exist, Tools builds it, which takes minutes, or fails
// without build.
func Tools(ctx context.Context, build bool) (string, error) { return programs(ctx, "tools", build) }

// Oldest is Tools for the oldest Kubernetes that works with Fanfare. Its binary has only the
// programs that this package's tests and the scenario run.
func Oldest(ctx context.Context, build bool) (string, error) { return programs(ctx, "oldest", build) }

// MetalLB returns the folder of MetalLB's programs, controller and speaker, and the folder
// of its sources, with its manifests and CRDs. If the programs do not exist, MetalLB builds
// them, which takes minutes.
func MetalLB(ctx context.Context) (dir, source string, err error) {
	if dir, err = programs(ctx, "metallb", true); err != nil {
		return "", "", err
	}
	source, err = MetalLBSource(ctx)
	return dir, source, err
}

// MetalLBSource returns the folder of MetalLB's sources, which it downloads if necessary.
func MetalLBSource(ctx context.Context) (string, error) {
	folder, err := here(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "go.universe.tf/metallb")
	cmd.Dir = filepath.Join(folder, "metallb")
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if json.Unmarshal(out, &module); module.Dir == "" {
		return "", fmt.Errorf("MetalLB's module: %v %s", err, module.Error)
	}
	return module.Dir, nil
}

// Conformance returns the folder of Kubernetes' own tests, e2e.test, and of agnhost, the program of
// their pods. If they do not exist, Conformance builds them, which takes minutes.
func Conformance(ctx context.Context) (dir string, err error) {
	return programs(ctx, "conformance", true)
}

// programs runs the script that builds the programs of a folder and prints their path.
func programs(ctx context.Context, name string, build bool) (string, error) {
	folder, err := here(ctx)
	if err != nil {
		return "", err
	}
	var args []string
	if !build {
		args = append(args, "--find")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(folder, name, "build.sh"), args...)
	// The flags and the module of the calling test do not apply to the build.
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("programs of e2e/kube/%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// here returns the folder of this package's sources.
func here(ctx context.Context) (string, error) {
	root, err := binary.SourceRoot(ctx)
	return filepath.Join(root, "e2e/kube"), err
}
