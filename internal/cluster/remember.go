package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// memoryVersion is in the file. What another version of Fanfare wrote is not
// read: it may mean something else.
const memoryVersion = 6

// remembered is what the file holds.
type remembered struct {
	Version  int
	Written  time.Time
	Snapshot *Snapshot // without the lists that may be long
	Services []Service `json:",omitempty"`
	Claims   []*Claim  `json:",omitempty"`
	// Assignments are not always what the Services' status says.
	Assignments []Assignment `json:",omitempty"`
}

// Remember writes what a speaker needs of a snapshot to a file, for one that
// starts while the API server is away. A crash leaves the old file or the new.
func Remember(path string, s *Snapshot) error {
	temp := path + ".tmp"
	if err := write(temp, s); err != nil {
		return fmt.Errorf("remember the cluster: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("remember the cluster: %w", err)
	}
	return nil
}

// write writes one object after the other. encoding/json keeps its buffers, and
// that of 5,000 Services at once was a third of a speaker's memory.
func write(path string, s *Snapshot) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	short := *s
	short.Services, short.Claims, short.Assignments, short.Problems, short.Versions = nil, nil, nil, nil, nil
	head, err := json.Marshal(remembered{Version: memoryVersion, Written: time.Now(), Snapshot: &short})
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	w.Write(bytes.TrimSuffix(head, []byte("}")))
	err = errors.Join(writeList(w, "Services", s.Services), writeList(w, "Claims", s.Claims), writeList(w, "Assignments", s.Assignments))
	w.WriteString("}")
	return errors.Join(err, w.Flush(), f.Close())
}

// writeList writes a field that is a list. The writer remembers its own errors.
func writeList[T any](w *bufio.Writer, name string, list []T) error {
	fmt.Fprintf(w, ",%q:[", name)
	encoder := json.NewEncoder(w)
	for i, v := range list {
		if i > 0 {
			w.WriteByte(',')
		}
		if err := encoder.Encode(v); err != nil {
			return err
		}
	}
	return w.WriteByte(']')
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
	r.Snapshot.Services, r.Snapshot.Claims, r.Snapshot.Assignments = r.Services, r.Claims, r.Assignments
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

// plainPool is Pool without its methods.
type plainPool Pool

type poolJSON struct {
	plainPool
	NamespaceSelector, ServiceSelector gateJSON
}

// MarshalJSON is for Remember.
func (p *Pool) MarshalJSON() ([]byte, error) {
	return json.Marshal(poolJSON{plainPool(*p), gateJSON{p.NamespaceSelector}, gateJSON{p.ServiceSelector}})
}

// UnmarshalJSON is for Recall.
func (p *Pool) UnmarshalJSON(data []byte) error {
	var j poolJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*p = Pool(j.plainPool)
	p.NamespaceSelector, p.ServiceSelector = j.NamespaceSelector.Selector, j.ServiceSelector.Selector
	return nil
}

// A gateJSON is a selector of which nil and one that matches nothing are others than
// one that matches everything.
type gateJSON struct{ labels.Selector }

// matchesNothing is no selector that could be written.
const matchesNothing = "!"

// MarshalJSON is for Remember.
func (g gateJSON) MarshalJSON() ([]byte, error) {
	if g.Selector == nil {
		return []byte("null"), nil
	}
	text := g.String()
	if _, selectable := g.Requirements(); !selectable {
		text = matchesNothing
	}
	return json.Marshal(text)
}

// UnmarshalJSON is for Recall.
func (g *gateJSON) UnmarshalJSON(data []byte) error {
	var text *string
	err := json.Unmarshal(data, &text)
	switch {
	case err != nil || text == nil:
		g.Selector = nil
	case *text == matchesNothing:
		g.Selector = labels.Nothing()
	default:
		g.Selector, err = labels.Parse(*text)
	}
	return err
}

// plainAdvertisement is Advertisement without its methods.
type plainAdvertisement Advertisement

type advertisementJSON struct {
	plainAdvertisement
	ServiceSelector, NodeSelector string
}

// MarshalJSON is for Remember.
func (a *Advertisement) MarshalJSON() ([]byte, error) {
	return json.Marshal(advertisementJSON{plainAdvertisement(*a), a.ServiceSelector.String(), a.NodeSelector.String()})
}

// UnmarshalJSON is for Recall.
func (a *Advertisement) UnmarshalJSON(data []byte) error {
	var j advertisementJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	services, err := labels.Parse(j.ServiceSelector)
	if err != nil {
		return err
	}
	nodes, err := labels.Parse(j.NodeSelector)
	if err != nil {
		return err
	}
	*a = Advertisement(j.plainAdvertisement)
	a.ServiceSelector, a.NodeSelector = services, nodes
	return nil
}

// plainL2Advertisement is L2Advertisement without its methods.
type plainL2Advertisement L2Advertisement

type l2AdvertisementJSON struct {
	plainL2Advertisement
	ServiceSelector, NodeSelector string
}

// MarshalJSON is for Remember.
func (a *L2Advertisement) MarshalJSON() ([]byte, error) {
	return json.Marshal(l2AdvertisementJSON{plainL2Advertisement(*a), a.ServiceSelector.String(), a.NodeSelector.String()})
}

// UnmarshalJSON is for Recall.
func (a *L2Advertisement) UnmarshalJSON(data []byte) error {
	var j l2AdvertisementJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	services, err1 := labels.Parse(j.ServiceSelector)
	nodes, err2 := labels.Parse(j.NodeSelector)
	*a = L2Advertisement(j.plainL2Advertisement)
	a.ServiceSelector, a.NodeSelector = services, nodes
	return errors.Join(err1, err2)
}

type preferenceJSON struct {
	Weight   int
	Selector string
}

// MarshalJSON is for Remember.
func (p Preference) MarshalJSON() ([]byte, error) {
	return json.Marshal(preferenceJSON{p.Weight, p.Selector.String()})
}

// UnmarshalJSON is for Recall.
func (p *Preference) UnmarshalJSON(data []byte) (err error) {
	var j preferenceJSON
	if err = json.Unmarshal(data, &j); err != nil {
		return err
	}
	p.Weight = j.Weight
	p.Selector, err = labels.Parse(j.Selector)
	return err
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
