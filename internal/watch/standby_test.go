package watch

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"

	"github.com/fanfare-lb/fanfare/internal/bubble"
)

// A speaker that starts while the API server is away goes on with what it knew,
// and with the API server once that answers.
func TestStandby(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.json")
	if err := WriteSnapshot(file, &cluster.Snapshot{Pools: []*cluster.Pool{{Name: "old"}}}); err != nil {
		t.Fatal(err)
	}
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		api := &fixed{snapshot: &cluster.Snapshot{Pools: []*cluster.Pool{{Name: "new"}}}, changed: make(chan struct{}, 1)}
		s, err := OpenStandby(ctx, file, 3*time.Second, quiet, func(context.Context) (cluster.Source, error) {
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

// Without a snapshot file there is nothing to do but wait.
func TestStandbyWithoutFile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		s, err := OpenStandby(t.Context(), filepath.Join(t.TempDir(), "none"), 3*time.Second, quiet, func(context.Context) (cluster.Source, error) {
			time.Sleep(time.Minute)
			return nil, errors.New("the API server is gone for good")
		})
		if err == nil || time.Since(began) != time.Minute || s.Fresh() {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

type fixed struct {
	snapshot *cluster.Snapshot
	changed  chan struct{}
}

func (f *fixed) Snapshot() *cluster.Snapshot { return f.snapshot }
func (f *fixed) Changed() <-chan struct{}    { return f.changed }
