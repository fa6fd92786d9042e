package ipam

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

var update = flag.Bool("update", false, "update the golden files")

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A golden archive holds a folder of files, held.txt (what a speaker remembers:
// an address, a Service and a pool in each line), and two results: what a
// controller decides, which remembers nothing, and what a speaker without one
// decides.
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testGolden(t, path) })
	}
}

func testGolden(t *testing.T, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var held []cluster.Assignment
	input := &txtar.Archive{Comment: a.Comment}
	want := map[string]string{}
	for _, f := range a.Files {
		switch f.Name {
		case "controller.txt", "speaker.txt":
			want[f.Name] = string(f.Data)
			continue
		case "held.txt":
			held = parseHeld(t, string(f.Data))
		default:
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		input.Files = append(input.Files, f)
	}
	files, err := watch.OpenFiles(t.Context(), dir, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if p := files.Snapshot().Problems; len(p) != 0 {
		t.Errorf("problems in the input: %v", p)
	}
	s := NewSource(files, held).Snapshot()
	got := map[string]string{
		"controller.txt": render(allocateAll(files.Snapshot())),
		"speaker.txt":    render(s.Assignments.Slice(), s.Refusals),
	}
	if !*update {
		if d := gocmp.Diff(want, got); d != "" {
			t.Errorf("-want +got (-update updates it):\n%s", d)
		}
		return
	}
	for _, name := range []string{"controller.txt", "speaker.txt"} {
		input.Files = append(input.Files, txtar.File{Name: name, Data: []byte(got[name])})
	}
	if err := os.WriteFile(path, txtar.Format(input), 0o644); err != nil {
		t.Fatal(err)
	}
}

func parseHeld(t *testing.T, s string) []cluster.Assignment {
	t.Helper()
	var held []cluster.Assignment
	for line := range strings.Lines(s) {
		f := append(strings.Fields(line), "")
		ns, name, ok := strings.Cut(f[1], "/")
		addr, err := netip.ParseAddr(f[0])
		if err != nil || !ok {
			t.Fatalf("held.txt: %q: %v", line, err)
		}
		held = append(held, cluster.Assignment{
			Addr: addr, Service: cluster.Name{Namespace: ns, Name: name}, Pool: f[2],
		})
	}
	return held
}

func render(as []cluster.Assignment, reasons []cluster.Reason) string {
	var b strings.Builder
	for _, a := range as {
		fmt.Fprintf(&b, "%s %s pool %s\n", a.Addr, a.Service, cmp.Or(a.Pool, "-"))
	}
	for _, r := range reasons {
		fmt.Fprintf(&b, "%s\n", r)
	}
	return b.String()
}

// allocateAll allocates for one snapshot, at no time.
func allocateAll(snap *cluster.Snapshot) ([]cluster.Assignment, []cluster.Reason) {
	return NewAllocator(snap, Settled).Allocate(time.Time{})
}
