package watch

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A snapshot that is read equals the written snapshot, to the last selector and address.
func TestSnapshotFileRoundTrip(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal("no worlds to write", err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		extract(t, archive, dir)
		files, err := OpenFiles(t.Context(), dir, nil, quiet)
		if err != nil {
			t.Fatal(err)
		}
		want := *files.Snapshot()
		want.Problems = nil
		file := filepath.Join(t.TempDir(), "cluster.json")
		if err := WriteSnapshot(file, &want); err != nil {
			t.Fatal(err)
		}
		got, err := ReadSnapshot(file)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		want.Peers = slices.Clone(want.Peers) // all but the passwords is written
		for i, p := range want.Peers {
			unsigned := *p
			unsigned.Password = ""
			want.Peers[i] = &unsigned
		}
		for s := range want.Services.All() { // nor are the Problems of Services
			unmarked := *s.Spec
			unmarked.Problems = nil
			want.Services = want.Services.With(cluster.Service{Spec: &unmarked, Endpoints: s.Endpoints})
		}
		if diff := cmp.Diff(render(&want), render(got)); diff != "" {
			t.Errorf("%s: (-written +read):\n%s", path, diff)
		}
	}
}

func TestReadSnapshotRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.json")
	if _, err := ReadSnapshot(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	for content, want := range map[string]string{
		"{": "cluster.json", `{"Version":99}`: "version 99, want 9", `{"Version":2}`: "version 2",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSnapshot(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q in it", content, err, want)
		}
	}
}
