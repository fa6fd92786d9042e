package speaker

import (
	"log/slog"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/notify"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// snapshotInterval is the least time between two writes. Writing 5,000 Services takes
// longer than a pass, and after a crash a few seconds do not matter.
const snapshotInterval = 10 * time.Second

// ClusterPath is the file of the last snapshot.
func ClusterPath(runDir string) string { return clusterFile.in(runDir) }

// A snapshotWriter writes the newest snapshot to the run directory at intervals, beside the
// loop.
type snapshotWriter struct {
	path string
	log  *slog.Logger
	// fresh reports whether the newest snapshot came from the API server, not from this
	// file.
	fresh func() bool
	wake  chan struct{} // has room for one
	quit  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	newest *cluster.Snapshot
}

// newSnapshotWriter returns nil, which is valid, if no snapshot must be saved.
func newSnapshotWriter(o Options, fresh func() bool) *snapshotWriter {
	if fresh == nil {
		return nil
	}
	d := &snapshotWriter{path: ClusterPath(o.RunDir), log: o.Log, fresh: fresh, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go d.run()
	return d
}

// update requests that s is written.
func (w *snapshotWriter) update(s *cluster.Snapshot) {
	if w == nil || !w.fresh() {
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
func (w *snapshotWriter) run() {
	defer close(w.done)
	for {
		select {
		case <-w.wake:
			w.write()
		case <-w.quit:
			return
		}
		select {
		case <-time.After(snapshotInterval):
		case <-w.quit:
			return
		}
	}
}

func (w *snapshotWriter) write() {
	w.mu.Lock()
	s := w.newest
	w.mu.Unlock()
	if err := watch.WriteSnapshot(w.path, s); err != nil {
		w.log.Warn("snapshot not written; a start without the API server would use an older one", "err", err)
	}
}

// close writes the newest snapshot and ends the goroutine.
func (w *snapshotWriter) close() {
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
