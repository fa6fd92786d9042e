package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// memoryVersion is in the file. What another version of Fanfare wrote is not
// read: it may mean something else.
const memoryVersion = 1

type remembered struct {
	Version  int
	Written  time.Time
	Snapshot *Snapshot
}

// Remember writes what a speaker needs of a snapshot to a file, for one that
// starts while the API server is away. A crash leaves the old file or the new.
func Remember(path string, s *Snapshot) error {
	keep := *s
	keep.Problems = nil
	data, err := json.Marshal(remembered{memoryVersion, time.Now(), &keep})
	if err != nil {
		return fmt.Errorf("remember the cluster: %w", err)
	}
	temp := path + ".tmp"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("remember the cluster: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("remember the cluster: %w", err)
	}
	return nil
}

// Recall reads what Remember wrote, and when. It fails when there is no file,
// or none that this version can read.
func Recall(path string) (*Snapshot, time.Time, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("recall the cluster: %w", err)
	}
	var r remembered
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, time.Time{}, fmt.Errorf("recall the cluster: %s: %w", path, err)
	}
	if r.Version != memoryVersion || r.Snapshot == nil {
		return nil, time.Time{}, fmt.Errorf("recall the cluster: %s: version %d, want %d", path, r.Version, memoryVersion)
	}
	return r.Snapshot, r.Written, nil
}

// plainPeer is Peer without its methods.
type plainPeer Peer

// peerJSON has the selector as people write it.
type peerJSON struct {
	plainPeer
	NodeSelector string
}

// MarshalJSON is for Remember.
func (p *Peer) MarshalJSON() ([]byte, error) {
	return json.Marshal(peerJSON{plainPeer(*p), p.NodeSelector.String()})
}

// UnmarshalJSON is for Recall.
func (p *Peer) UnmarshalJSON(data []byte) error {
	var j peerJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	selector, err := labels.Parse(j.NodeSelector)
	if err != nil {
		return err
	}
	*p = Peer(j.plainPeer)
	p.NodeSelector = selector
	return nil
}

// A Standby is a Source that says what was remembered until another one can
// speak.
type Standby struct {
	source  atomic.Pointer[Source]
	stale   *Snapshot
	changed chan struct{}
}

// OpenStandby calls open, which may take as long as the API server is away, and
// returns when that has, or after patience if there is something remembered at
// path. What open returns later takes over then. It fails if open does, or ctx
// ends, before there is anything to say.
func OpenStandby(ctx context.Context, path string, patience time.Duration, log *slog.Logger, open func(context.Context) (Source, error)) (*Standby, error) {
	s := &Standby{changed: make(chan struct{}, 1)}
	opened := make(chan error, 1)
	go func() {
		source, err := open(ctx)
		if err == nil {
			s.source.Store(&source)
			go s.relay(ctx, source.Changed())
			s.poke()
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
	stale, written, err := Recall(path)
	if err != nil {
		log.Warn("the API server is away, and there is nothing to go on with", "err", err)
		return s, <-opened
	}
	log.Warn("the API server is away: going on with what was known", "since", written)
	stale.Problems = []Problem{{Object: "API server", Message: fmt.Sprintf(
		"has not answered since the speaker started; what it said until %s stays in use", written.UTC().Format(time.RFC3339))}}
	s.stale = stale
	return s, nil
}

// Snapshot is the other source's once there is one.
func (s *Standby) Snapshot() *Snapshot {
	if source := s.source.Load(); source != nil {
		return (*source).Snapshot()
	}
	return s.stale
}

// Fresh says whether Snapshot is the other source's.
func (s *Standby) Fresh() bool { return s.source.Load() != nil }

// Changed gets a value when there is another snapshot.
func (s *Standby) Changed() <-chan struct{} { return s.changed }

func (s *Standby) relay(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
			s.poke()
		case <-ctx.Done():
			return
		}
	}
}

func (s *Standby) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
