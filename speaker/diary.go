package speaker

import (
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// diaryInterval is the least time between two entries: writing 5,000 Services
// takes longer than any pass, and after a crash a few seconds more or less do
// not matter.
const diaryInterval = 10 * time.Second

// ClusterPath is where a speaker remembers the cluster.
func ClusterPath(runDir string) string { return filepath.Join(runDir, "cluster.json") }

// A diary writes the newest snapshot to the run directory now and then, beside
// the loop.
type diary struct {
	path string
	log  *slog.Logger
	// fresh says whether the newest snapshot is news, not what was read here.
	fresh func() bool
	wake  chan struct{} // capacity 1
	quit  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	newest *cluster.Snapshot
}

// newDiary returns nil, which can be used, when nothing is to be remembered.
func newDiary(o Options, fresh func() bool) *diary {
	if fresh == nil {
		return nil
	}
	d := &diary{path: ClusterPath(o.RunDir), log: o.Log, fresh: fresh, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go d.run()
	return d
}

// note has s written soon.
func (d *diary) note(s *cluster.Snapshot) {
	if d == nil || !d.fresh() {
		return
	}
	d.mu.Lock()
	known := d.newest == s
	d.newest = s
	d.mu.Unlock()
	if known {
		return
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *diary) run() {
	defer close(d.done)
	for {
		select {
		case <-d.wake:
			d.write()
		case <-d.quit:
			return
		}
		select {
		case <-time.After(diaryInterval):
		case <-d.quit:
			return
		}
	}
}

func (d *diary) write() {
	d.mu.Lock()
	s := d.newest
	d.mu.Unlock()
	if err := watch.WriteSnapshot(d.path, s); err != nil {
		d.log.Warn("a start without the API server will know less", "err", err)
	}
}

// close writes what is new and ends the diary.
func (d *diary) close() {
	if d == nil {
		return
	}
	close(d.quit)
	<-d.done
	select {
	case <-d.wake:
		d.write()
	default:
	}
}
