package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Tools returns the path of the binary that contains all Kubernetes programs, selected by
// its first argument. If it does not exist, Tools builds it, which takes minutes, or fails
// without build.
func Tools(ctx context.Context, build bool) (string, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("BUG: no source file")
	}
	script := filepath.Join(filepath.Dir(here), "tools", "build.sh")
	var args []string
	if !build {
		args = append(args, "--find")
	}
	cmd := exec.CommandContext(ctx, script, args...)
	// The flags and the module of the calling test do not apply to the build.
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tools of Kubernetes: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
