package watch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// standbyDelay is how long a speaker waits for the API server before it uses the saved snapshot. It
// must be well below the restart time of BGP's graceful restart (RFC 4724), during which routers
// keep the routes of a speaker.
const standbyDelay = 5 * time.Second

// RefusedDelay is how long a speaker waits from the first refused connection on. It is the time for
// some more attempts: behind one address, another API server may accept connections.
const RefusedDelay = 500 * time.Millisecond

// A LiveSource is a Source that knows whether its snapshots are up to date.
type LiveSource interface {
	cluster.Source
	// InStep reports whether Snapshot is the API server's state, as far as is known: a dead
	// connection is detected within a minute.
	InStep() bool
}

// A Standby is a Source that returns the snapshot of a file until another Source is open.
type Standby struct {
	source  atomic.Pointer[LiveSource] // nil until it is open
	stale   *cluster.Snapshot          // from the file; nil if it was not needed
	changed chan struct{}
}

// OpenStandby calls open, which may block while the API server does not answer, and calls refused if
// that refuses a connection. OpenStandby returns when open has returned. If the saved snapshot may be
// used, it returns standbyDelay after the start or [RefusedDelay] after the first refusal, whichever
// is earlier, and the Source takes over later. It fails if open fails, or ctx ends, before there is
// any snapshot.
func OpenStandby(ctx context.Context, saved SavedSnapshot, log *slog.Logger,
	open func(ctx context.Context, refused func()) (LiveSource, error)) (*Standby, error) {
	s := &Standby{changed: make(chan struct{}, 1)}
	opened := make(chan error, 1)
	refused := make(chan struct{})
	go func() {
		source, err := open(ctx, sync.OnceFunc(func() { close(refused) }))
		if err == nil {
			s.source.Store(&source)
			notify.Changed(s.changed)
		}
		opened <- err
		for err == nil {
			select {
			case <-source.Changed():
				notify.Changed(s.changed)
			case <-ctx.Done():
				return
			}
		}
	}()
	if err, is := inTime(opened, refused); is {
		return s, err
	}
	stale, age, err := saved.Recall()
	if err != nil {
		log.Warn("API server does not answer, and there is no snapshot that may be used: waiting", "err", err)
		return s, <-opened
	}
	log.Warn("API server does not answer: using the snapshot from before", "age", age.Round(time.Second))
	stale.Problems = []cluster.Problem{{Object: serverKey, Message: fmt.Sprintf(
		"has not answered since the speaker started; its objects as of %s stay in use",
		time.Now().Add(-age).UTC().Format(time.RFC3339))}}
	s.stale = stale
	return s, nil
}

// inTime waits for the result of open, and reports whether there was one before the wait was over.
func inTime(opened <-chan error, refused <-chan struct{}) (err error, is bool) {
	end := time.Now().Add(standbyDelay)
	wait := time.NewTimer(standbyDelay)
	defer wait.Stop()
	for {
		select {
		case err := <-opened:
			return err, true
		case <-refused:
			wait.Reset(min(RefusedDelay, time.Until(end)))
			refused = nil
		case <-wait.C:
			return nil, false
		}
	}
}

// Snapshot returns the other Source's snapshot once that is open.
func (s *Standby) Snapshot() *cluster.Snapshot {
	if source := s.source.Load(); source != nil {
		return (*source).Snapshot()
	}
	return s.stale
}

// InStep reports whether Snapshot is the API server's state; it is not while it is the saved one.
func (s *Standby) InStep() bool {
	source := s.source.Load()
	return source != nil && (*source).InStep()
}

// Changed receives a value when there is another snapshot.
func (s *Standby) Changed() <-chan struct{} { return s.changed }
