package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The API server has the version of the module that the test's flags select, so that `make
// oldest-test` tests that version and no other.
func TestAPIServerVersion(t *testing.T) {
	folder := "tools"
	if *oldest {
		folder = "oldest"
	}
	module, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	must(t, err)
	want := regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`).FindStringSubmatch(string(module))
	if want == nil {
		t.Fatalf("%s/go.mod does not require Kubernetes", folder)
	}
	got, err := controlPlane(t).Admin().Version()
	must(t, err)
	if got != want[1] {
		t.Errorf("the API server is of version %s: want %s", got, want[1])
	}
}
