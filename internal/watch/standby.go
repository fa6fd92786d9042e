package watch

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/notify"
)

// StandbyDelay is how long a speaker waits for the API server before it uses the saved snapshot. It
// must be well below the restart time of BGP's graceful restart (RFC 4724), during which routers
// keep the routes of a speaker.
const StandbyDelay = 5 * time.Second

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

// OpenStandby calls open, which may block while the API server does not answer. It returns when
// open has returned, or after patience if the saved snapshot may be used: then the Source takes
// over later. It fails if open fails, or ctx ends, before there is any snapshot.
func OpenStandby(ctx context.Context, saved SavedSnapshot, patience time.Duration, log *slog.Logger, open func(context.Context) (LiveSource, error)) (*Standby, error) {
	s := &Standby{changed: make(chan struct{}, 1)}
	opened := make(chan error, 1)
	go func() {
		source, err := open(ctx)
		if err == nil {
			s.source.Store(&source)
			go s.relay(ctx, source.Changed())
			notify.Changed(s.changed)
		}
		opened <- err
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-opened:
		return s, err
	case <-timer.C:
	}
	stale, age, err := saved.Recall()
	if err != nil {
		log.Warn("API server does not answer, and there is no snapshot that may be used: waiting", "err", err)
		return s, <-opened
	}
	log.Warn("API server does not answer: using the snapshot from before", "age", age.Round(time.Second))
	stale.Problems = []cluster.Problem{{Object: "API server", Message: fmt.Sprintf(
		"has not answered since the speaker started; its objects as of %s stay in use", time.Now().Add(-age).UTC().Format(time.RFC3339))}}
	s.stale = stale
	return s, nil
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

// relay passes on the changes of the opened Source.
func (s *Standby) relay(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
			notify.Changed(s.changed)
		case <-ctx.Done():
			return
		}
	}
}
