package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/bubble"
)

// What is recalled means what was remembered, to the last selector and address.
func TestRecallWhatWasRemembered(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal("no worlds to remember", err)
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
		if err := Remember(file, &want); err != nil {
			t.Fatal(err)
		}
		got, written, err := Recall(file)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if time.Since(written) > time.Minute {
			t.Errorf("written %s", written)
		}
		want.Peers = slices.Clone(want.Peers) // all but the passwords is remembered
		for i, p := range want.Peers {
			unsigned := *p
			unsigned.Password = ""
			want.Peers[i] = &unsigned
		}
		if diff := cmp.Diff(render(&want), render(got)); diff != "" {
			t.Errorf("%s: (-remembered +recalled):\n%s", path, diff)
		}
	}
}

func TestRecallRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.json")
	if _, _, err := Recall(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	for content, want := range map[string]string{"{": "cluster.json", `{"Version":99}`: "version 99, want 6", `{"Version":2}`: "version 2"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Recall(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q in it", content, err, want)
		}
	}
}

// A speaker that starts while the API server is away goes on with what it knew,
// and with the API server once that answers.
func TestStandby(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.json")
	if err := Remember(file, &Snapshot{Pools: []*Pool{{Name: "old"}}}); err != nil {
		t.Fatal(err)
	}
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		api := &fixed{snapshot: &Snapshot{Pools: []*Pool{{Name: "new"}}}, changed: make(chan struct{}, 1)}
		s, err := OpenStandby(ctx, file, 3*time.Second, quiet, func(context.Context) (Source, error) {
			time.Sleep(time.Hour)
			return api, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Snapshot(); got.Pools[0].Name != "old" || len(got.Problems) != 1 || s.Fresh() {
			t.Errorf("while the API server is away: %v, fresh %v", got, s.Fresh())
		}
		<-s.Changed()
		if got := s.Snapshot(); got.Pools[0].Name != "new" || !s.Fresh() {
			t.Errorf("once it is back: %v, fresh %v", got, s.Fresh())
		}
		api.changed <- struct{}{}
		<-s.Changed()
	})
}

// Nothing is remembered: there is nothing to do but wait.
func TestStandbyWithoutMemory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		s, err := OpenStandby(t.Context(), filepath.Join(t.TempDir(), "none"), 3*time.Second, quiet, func(context.Context) (Source, error) {
			time.Sleep(time.Minute)
			return nil, errors.New("the API server is gone for good")
		})
		if err == nil || time.Since(began) != time.Minute || s.Fresh() {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

type fixed struct {
	snapshot *Snapshot
	changed  chan struct{}
}

func (f *fixed) Snapshot() *Snapshot      { return f.snapshot }
func (f *fixed) Changed() <-chan struct{} { return f.changed }
