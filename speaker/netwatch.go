package speaker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/linkwatch"
)

// readPause is the least time between two readings of a netWatch.
const readPause = 100 * time.Millisecond

// A netWatch reads a part of the node's network configuration at its start, and again after each
// change of a kind that may concern it.
type netWatch[T any] struct {
	// read returns what there is now, and whether that is another state than was.
	read    func(was T) (now T, changed bool)
	groups  []uint        // of netlink: the kinds of changes
	changed chan struct{} // has room for one
	reading sync.Mutex
	known   atomic.Pointer[T]

	once   sync.Once
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newNetWatch reads nothing yet.
func newNetWatch[T any](read func(was T) (T, bool), groups ...uint) *netWatch[T] {
	ctx, cancel := context.WithCancel(context.Background())
	w := &netWatch[T]{read: read, groups: groups, changed: make(chan struct{}, 1), ctx: ctx, cancel: cancel}
	w.known.Store(new(T))
	return w
}

// start reads, and starts the watch, unless it runs already.
func (w *netWatch[T]) start() (first bool) {
	w.once.Do(func() {
		first = true
		w.refresh()
		signals := make(chan struct{}, 1)
		w.wg.Go(func() { linkwatch.Run(w.ctx, signals, w.groups...) })
		w.wg.Go(func() { w.follow(signals) })
	})
	return first
}

// current returns what was read last. The first call starts the watch.
func (w *netWatch[T]) current() T {
	w.start()
	return *w.known.Load()
}

// stop ends the watch and waits for its end.
func (w *netWatch[T]) stop() {
	w.cancel()
	w.wg.Wait()
}

// follow reads after each signal. Between readings it rests ten times as long as one took: a node may
// have many routes, of which some change all the time.
func (w *netWatch[T]) follow(signals <-chan struct{}) {
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-signals:
		}
		began := time.Now()
		w.refresh()
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(max(readPause, 10*time.Since(began))):
		}
	}
}

func (w *netWatch[T]) refresh() {
	w.reading.Lock()
	defer w.reading.Unlock()
	now, changed := w.read(*w.known.Load())
	w.known.Store(&now)
	if changed {
		notify.Changed(w.changed)
	}
}
