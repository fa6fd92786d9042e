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

// Tools is the path of the file that is all programs of Kubernetes; which of
// them its first argument says. When it was not built yet, it is if build is set,
// which takes minutes; else that is an error.
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
	// GOFLAGS and the like of the test that calls us are not for the build, and
	// neither is its module.
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tools of Kubernetes: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
