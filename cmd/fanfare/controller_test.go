package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestControllerFlags(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"controller":                       "--kubeconfig: missing, and this process is not in a pod",
		"controller --kubeconfig /none":    "--kubeconfig /none: ",
		"controller --kubeconfig " + empty: "--kubeconfig " + empty + ": ",
		"controller --log-level loud":      `--log-level "loud": want debug`,
		"controller shop":                  "unknown command",
	} {
		cmd := root()
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// No two processes have one name, not even on one host.
func TestInstance(t *testing.T) {
	if a, b := instance(), instance(); a == b || len(a) > 128 {
		t.Errorf("%s and %s", a, b)
	}
}
