package rundir

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

const (
	// snapshotInterval is the least time between two writes. Writing 5,000 Services takes
	// longer than a pass, and after a crash a few seconds do not matter.
	snapshotInterval = 10 * time.Second
	// confirmInterval is the time between two confirmations of an unchanged snapshot. Each is a
	// file of some 70 bytes.
	confirmInterval = 15 * time.Second
)

// ClusterPath is the file of the last snapshot.
func ClusterPath(runDir string) string { return clusterFile.in(runDir) }

// Saved returns the last snapshot, and when it was last in step with the API server.
func Saved(runDir string) watch.SavedSnapshot {
	return watch.SavedSnapshot{Path: clusterFile.in(runDir), InStepPath: inStepFile.in(runDir)}
}

// A SnapshotWriter writes the newest snapshot to the run directory at intervals, in the background,
// and confirms it while the API server has the same.
type SnapshotWriter struct {
	saved watch.SavedSnapshot
	log   *slog.Logger
	// inStep reports whether the newest snapshot is the API server's state: it comes neither from
	// the file nor from before an outage.
	inStep func() bool
	wake   chan struct{} // has room for one
	quit   chan struct{}
	done   chan struct{}

	mu     sync.Mutex
	newest *cluster.Snapshot
	err    error // of the last write or confirmation

	// Only run uses this and, after run has ended, close.
	written bool // saved has the newest snapshot, unless wake announces one
}

// NewSnapshotWriter returns nil, which is valid, if no snapshot must be saved.
func NewSnapshotWriter(saved watch.SavedSnapshot, inStep func() bool, log *slog.Logger) *SnapshotWriter {
	if inStep == nil {
		return nil
	}
	w := &SnapshotWriter{
		saved: saved, log: log, inStep: inStep, wake: make(chan struct{}, 1), quit: make(chan struct{}),
		done: make(chan struct{}),
	}
	go w.run()
	return w
}

// Update requests that s is written.
func (w *SnapshotWriter) Update(s *cluster.Snapshot) {
	if w == nil || !w.inStep() {
		return
	}
	w.mu.Lock()
	known := w.newest == s
	w.newest = s
	w.mu.Unlock()
	if known {
		return
	}
	notify.Changed(w.wake)
}

// run writes at once after a quiet time, then once each snapshotInterval.
func (w *SnapshotWriter) run() {
	defer close(w.done)
	idle := time.NewTicker(confirmInterval)
	defer idle.Stop()
	wake := w.wake
	var rested <-chan time.Time
	for {
		select {
		case <-wake:
			w.write()
			wake, rested = nil, time.After(snapshotInterval)
		case <-rested:
			wake, rested = w.wake, nil
		case <-idle.C:
			switch {
			case len(w.wake) != 0:
			case w.written:
				w.confirm(w.saved.Clock())
			case w.Err() != nil:
				w.write() // the file system may have room again
			}
		case <-w.quit:
			return
		}
	}
}

func (w *SnapshotWriter) write() {
	at, clock := w.saved.Clock() // before the newest is read, which may change meanwhile
	w.mu.Lock()
	s := w.newest
	w.mu.Unlock()
	err := w.saved.Save(s)
	if w.written = err == nil; err != nil {
		w.report(fmt.Errorf("snapshot not written; a start without the API server would use an older one, or none: %w",
			err))
		return
	}
	w.confirm(at, clock)
}

// confirm records that the written snapshot was the API server's state at a Moment, or that the
// clock failed.
func (w *SnapshotWriter) confirm(at watch.Moment, err error) {
	if !w.written || !w.inStep() {
		return
	}
	if err == nil {
		err = w.saved.Confirm(at)
	}
	if err != nil {
		err = fmt.Errorf("snapshot not confirmed; a start without the API server would wait for it: %w", err)
	}
	w.report(err)
}

// report logs an error that was not the last one, and stores it for Err.
func (w *SnapshotWriter) report(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && (w.err == nil || w.err.Error() != err.Error()) {
		w.log.Warn("run directory", "err", err)
	}
	w.err = err
}

// Err returns why the newest snapshot could not be saved, nil if it could.
func (w *SnapshotWriter) Err() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close writes the newest snapshot and ends the goroutine.
func (w *SnapshotWriter) Close() {
	if w == nil {
		return
	}
	close(w.quit)
	<-w.done
	select {
	case <-w.wake:
		w.write()
	default:
	}
}
