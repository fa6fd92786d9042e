package ipam

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/watch"
)

// Each archive in testdata/cases is about one thing. Its files come in pairs:
// NAME.yaml is a cluster, with all.yaml added, and NAME.txt what a controller
// decides about it, after what is wrong with the objects. Objects need no
// apiVersion there.
func TestCases(t *testing.T) {
	paths, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testCases(t, path) })
	}
}

func testCases(t *testing.T, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := &txtar.Archive{Comment: a.Comment}
	files := map[string]string{}
	for _, f := range a.Files {
		if files[f.Name] != "" {
			t.Errorf("%s is there twice", f.Name)
		}
		files[f.Name] = string(f.Data)
	}
	for _, f := range a.Files {
		name, ok := strings.CutSuffix(f.Name, ".yaml")
		if !ok {
			continue
		}
		out.Files = append(out.Files, f)
		if name == "all" {
			continue
		}
		got := decide(t, string(f.Data)+"---\n"+files["all.yaml"])
		out.Files = append(out.Files, txtar.File{Name: name + ".txt", Data: []byte(got)})
		if want := files[name+".txt"]; !*update && want != got {
			t.Errorf("%s: -want +got (-update updates it):\n%s", name, gocmp.Diff(want, got))
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// apiVersions are those of the kinds in cases.
var apiVersions = map[string]string{
	"Service": "v1", "Namespace": "v1", "Node": "v1", "ServiceCIDR": "networking.k8s.io/v1",
	"AddressPool": "fanfare.io/v1alpha1", "AddressClaim": "fanfare.io/v1alpha1", "BGPPeer": "fanfare.io/v1alpha1",
}

var kindLine = regexp.MustCompile(`(?m)^kind: (\w+)$`)

// decide returns the decisions of a controller about a cluster.
func decide(t *testing.T, objects string) string {
	t.Helper()
	objects = kindLine.ReplaceAllStringFunc(objects, func(line string) string {
		return "apiVersion: " + apiVersions[strings.TrimPrefix(line, "kind: ")] + "\n" + line
	})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cluster.yaml"), []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := watch.OpenFiles(t.Context(), dir, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	snap := f.Snapshot()
	var b strings.Builder
	for _, p := range snap.Problems {
		p.File = ""
		fmt.Fprintf(&b, "problem %s\n", p)
	}
	return b.String() + render(allocateAll(snap))
}
