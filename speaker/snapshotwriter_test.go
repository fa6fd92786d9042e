package speaker

import (
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// The file has the newest snapshot soon, not every one, and never one that was read from
// it.
func TestSnapshotWriter(t *testing.T) {
	dir := t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		var fresh atomic.Bool
		d := newSnapshotWriter(Options{RunDir: dir, Log: slog.New(slog.DiscardHandler)}, fresh.Load)
		pools := func() (names []string) {
			bubble.Wait()
			s, _, err := watch.ReadSnapshot(ClusterPath(dir))
			if os.IsNotExist(err) || s == nil {
				return nil
			}
			for _, p := range s.Pools {
				names = append(names, p.Name)
			}
			return names
		}
		expect := func(when string, want ...string) {
			t.Helper()
			if got := pools(); len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		world := func(name string) *cluster.Snapshot { return &cluster.Snapshot{Pools: []*cluster.Pool{{Name: name}}} }
		d.update(world("recalled"))
		expect("not fresh")
		fresh.Store(true)
		d.update(world("first"))
		expect("first", "first")
		d.update(world("second"))
		d.update(world("third"))
		expect("too soon", "first")
		time.Sleep(snapshotInterval)
		expect("later", "third")
		d.update(world("last"))
		d.close()
		expect("closed", "last")
	})
}

// A speaker that reads a folder saves no snapshot.
func TestNilSnapshotWriter(t *testing.T) {
	d := newSnapshotWriter(Options{RunDir: t.TempDir()}, nil)
	d.update(&cluster.Snapshot{})
	d.close()
	if d != nil {
		t.Error("a writer without a need")
	}
}
