package measure

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A change of the measured code changes the hash. Comments, layout, tests and other folders do
// not.
func TestCodeOf(t *testing.T) {
	write := func(t *testing.T, dir, name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	code := func(t *testing.T, name, text string) string {
		dir := t.TempDir()
		for _, folder := range measured["ipam"] {
			write(t, dir, folder+"/a.go", "package a\n\nfunc f() int { return 1 }\n")
		}
		write(t, dir, name, text)
		hash, err := CodeOf("ipam", dir)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	want := code(t, "README.md", "")
	for _, tt := range []struct {
		what, name, text string
		same             bool
	}{
		{"a comment", "controller/a.go", "package a\n\n// f is 1.\nfunc f() int { return 1 } // one\n", true},
		{"layout", "controller/a.go", "package a\nfunc f()   int { return 1 }\n", true},
		{"a test", "controller/a_test.go", "package a\n", true},
		{"another folder", "l2/a.go", "package l2\n", true},
		{"a literal", "controller/a.go", "package a\n\nfunc f() int { return 2 }\n", false},
		{"a name", "controller/a.go", "package a\n\nfunc g() int { return 1 }\n", false},
		{"a file", "controller/b.go", "package a\n", false},
		{"a folder below", "controller/b/b.go", "package b\n", false},
		{"a program of BPF", "controller/b.c", "int b;\n", false},
	} {
		if got := code(t, tt.name, tt.text); (got == want) != tt.same {
			t.Errorf("%s: %s, without it %s: want the same: %t", tt.what, got, want, tt.same)
		}
	}
	if _, err := CodeOf("nothing", t.TempDir()); err == nil {
		t.Error("an unknown benchmark has code")
	}
	if _, err := CodeOf("ipam", t.TempDir()); err == nil {
		t.Error("missing folders have code")
	}
}

// uncounted are the packages of the program whose changes mark no page as old.
var uncounted = map[string]string{
	"api/v1alpha1":           "types alone",
	"cmd/fanfare":            "flags and subcommands; the lists name process.go",
	"internal/healthcheck":   "answers load balancers outside of the cluster, which no benchmark has",
	"internal/apigroup":      "makes REST clients once, when the process starts",
	"internal/event":         "writes Events, beside what is measured",
	"internal/kernel/hwaddr": "compares hardware addresses",
	"internal/metallb":       "fanfare convert",
	"internal/monitoring":    "answers scrapes",
	"internal/base/notify":   "a few lines about channels",
	"internal/base/retry":    "says how long to wait after an error",
	"manifests":              "YAML",
}

// The matrix measures the whole program. So its list, and the reasons above, name each package of the
// program, and other lists have nothing that the matrix's lacks: a new package must be put into one or the other.
func TestMeasuredCodeIsComplete(t *testing.T) {
	const module = "github.com/fanfare-lb/fanfare/"
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/fanfare")
	cmd.Dir = filepath.Join("..", "..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	covered := func(pkg string) bool {
		return slices.ContainsFunc(measured["matrix"], func(folder string) bool {
			return pkg == folder || strings.HasPrefix(pkg, folder+"/")
		})
	}
	reasons := maps.Clone(uncounted)
	for _, path := range strings.Fields(string(out)) {
		pkg, ours := strings.CutPrefix(path, module)
		if !ours {
			continue
		}
		if _, is := uncounted[pkg]; is == covered(pkg) {
			t.Errorf("%s: measured %t, uncounted %t: want one of them", pkg, covered(pkg), is)
		}
		delete(reasons, pkg)
	}
	for pkg := range reasons {
		t.Errorf("%s is uncounted, and not in the program", pkg)
	}
	for name, folders := range measured {
		for _, folder := range folders {
			if !covered(folder) {
				t.Errorf("%s has %s, and the matrix has not", name, folder)
			}
		}
	}
}
