package rundir

import (
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// The file has the newest snapshot soon, not every one, and never one that was read from
// it.
func TestSnapshotWriter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var inStep atomic.Bool
		saved := savedInBubble(t)
		d := NewSnapshotWriter(saved, inStep.Load, slog.New(slog.DiscardHandler))
		pools := func() (names []string) {
			bubble.Wait()
			s, err := watch.ReadSnapshot(saved.Path)
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
		d.Update(poolNamed("recalled"))
		expect("not in step")
		inStep.Store(true)
		d.Update(poolNamed("first"))
		expect("first", "first")
		d.Update(poolNamed("second"))
		d.Update(poolNamed("third"))
		expect("too soon", "first")
		time.Sleep(snapshotInterval)
		expect("later", "third")
		d.Update(poolNamed("last"))
		d.Close()
		expect("closed", "last")
	})
}

// While nothing changes, the age of the snapshot stays small. It grows from the moment at which
// the API server is away, and with it the speaker.
func TestSnapshotAge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var inStep atomic.Bool
		inStep.Store(true)
		saved := savedInBubble(t)
		d := NewSnapshotWriter(saved, inStep.Load, slog.New(slog.DiscardHandler))
		expect := func(when string, least, most time.Duration) {
			t.Helper()
			bubble.Wait()
			if _, age, err := saved.Recall(); err != nil || age < least || age > most {
				t.Errorf("%s: age %s, error %v; want %s to %s", when, age, err, least, most)
			}
		}
		d.Update(poolNamed("a"))
		expect("written", 0, 0)
		time.Sleep(10 * time.Hour)
		expect("idle for hours", 0, confirmInterval)
		inStep.Store(false)
		d.Update(poolNamed("with the problem that the API server is away"))
		time.Sleep(3 * time.Minute)
		expect("API server away", 3*time.Minute, 3*time.Minute+confirmInterval)
		inStep.Store(true)
		d.Update(poolNamed("b"))
		expect("back", 0, 0)
		d.Update(poolNamed("c"))
		d.Close()
		expect("closed", 0, 0)
		time.Sleep(watch.MaxSnapshotAge)
		expect("speaker down", watch.MaxSnapshotAge, watch.MaxSnapshotAge)
		time.Sleep(time.Nanosecond)
		if _, _, err := saved.Recall(); err == nil {
			t.Error("a speaker that was down for longer uses the snapshot")
		}
	})
}

// A snapshot that could not be written is not confirmed: the file has an older one.
func TestSnapshotNotWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		saved := savedInBubble(t)
		if err := saved.Save(poolNamed("old")); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(saved.Path+".tmp", 0o700); err != nil {
			t.Fatal(err)
		}
		d := NewSnapshotWriter(saved, func() bool { return true }, slog.New(slog.DiscardHandler))
		d.Update(poolNamed("new"))
		time.Sleep(time.Hour)
		bubble.Wait()
		if _, age, err := saved.Recall(); err == nil {
			t.Errorf("the old snapshot has age %s", age)
		}
		d.Close()
	})
}

// A run directory without room is reported until there is room again, when the snapshot is written without another
// change.
func TestSnapshotWithoutRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		saved := savedInBubble(t)
		full := saved.Path + ".tmp" // what is written to /dev/full does not fit: ENOSPC
		if err := os.Symlink("/dev/full", full); err != nil {
			t.Fatal(err)
		}
		w := NewSnapshotWriter(saved, func() bool { return true }, slog.New(slog.DiscardHandler))
		defer w.Close()
		if err := w.Err(); err != nil {
			t.Error(err)
		}
		w.Update(poolNamed("new"))
		time.Sleep(time.Hour)
		bubble.Wait()
		if err := w.Err(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("without room: %v", err)
		}
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		time.Sleep(confirmInterval)
		bubble.Wait()
		if _, age, err := saved.Recall(); w.Err() != nil || err != nil || age != 0 {
			t.Errorf("with room again: %v; read: age %s, %v", w.Err(), age, err)
		}
	})
}

func poolNamed(name string) *cluster.Snapshot {
	return &cluster.Snapshot{Pools: []*cluster.Pool{{Name: name}}}
}

// savedInBubble is a file with the clock of the bubble.
func savedInBubble(t *testing.T) watch.SavedSnapshot {
	saved, began := Saved(t.TempDir()), time.Now()
	saved.Now = func() (watch.Moment, error) { return watch.Moment{Boot: "b", Uptime: time.Since(began)}, nil }
	return saved
}

// A speaker that reads a folder saves no snapshot.
func TestNilSnapshotWriter(t *testing.T) {
	dir := t.TempDir()
	d := NewSnapshotWriter(Saved(dir), nil, nil)
	d.Update(&cluster.Snapshot{})
	d.Close()
	if d != nil {
		t.Error("a writer without a need")
	}
}
