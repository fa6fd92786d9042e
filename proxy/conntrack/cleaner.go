package conntrack

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/internal/notify"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

const (
	// cleanupInterval is the least time between two sweeps. Each makes the kernel
	// walk its whole hash table, so that under a storm of changes one sweep
	// serves many.
	cleanupInterval = 100 * time.Millisecond
	// cleanupPauseFactor is how many times as long as a sweep took is paused after it, but
	// no longer than maxCleanupPause, so that a large table costs little more of a core.
	cleanupPauseFactor = 19
	maxCleanupPause    = time.Second
	// cleanupRetry is when a sweep that failed is tried again.
	cleanupRetry = time.Second
	// synPatience is how long a SYN may wait for the answer of a backend that was
	// removed, before it is taken for lost. A backend that only stops answers at
	// once; the client retries after a second, and should find another one.
	synGrace = 500 * time.Millisecond
)

// A Cleaner deletes conntrack entries that changes have made wrong. It does so
// beside Set: the walk takes the kernel ten times as long as the change itself,
// and an address would have to wait for it to be announced.
type Cleaner struct {
	sock       *nfnl.Socket
	challenges challengeSockets
	log        *slog.Logger
	deleted    prometheus.Counter // entries
	failures   prometheus.Counter
	wake       chan struct{} // capacity 1
	quit       chan struct{}
	done       chan struct{}
	once       sync.Once

	mu      sync.Mutex
	pending StaleEntries
	want    state.State // what was set last
	coming  state.State // what is being set: the flows that it makes are there before Set returns
	err     error       // of the last sweep
	idle    bool        // nothing is pending or under way

	// What can wait before it is pending.
	syns, draining delay
	// since is when the backends of draining began to drain, the last time: an earlier cleanup must
	// not end flows that have begun meanwhile.
	since map[drainingBackend]time.Time
	// again are the backends whose flows the sweep under way lets rest.
	again StaleEntries
}

// A delay keeps a StaleEntries for a while before the sweep. What comes while other things wait is the next
// to wait, so that one sweep serves many.
type delay struct {
	patience      time.Duration
	waiting, next StaleEntries
	timer         *time.Timer
}

// add delays stale; ripe is called when it has waited. It must take what is due.
func (d *delay) add(stale StaleEntries, ripe func()) {
	switch {
	case len(stale) == 0:
	case len(d.waiting) > 0:
		d.next.merge(stale)
	default:
		d.waiting = stale
		d.timer = time.AfterFunc(d.patience, ripe)
	}
}

// due takes what has waited.
func (d *delay) due() StaleEntries {
	stale := d.waiting
	d.waiting, d.next = d.next, make(StaleEntries)
	if len(d.waiting) > 0 {
		d.timer.Reset(d.patience)
	}
	return stale
}

// all takes everything, whether it has waited or not.
func (d *delay) all() StaleEntries {
	if d.timer != nil {
		d.timer.Stop()
	}
	stale := d.waiting
	stale.merge(d.next)
	d.waiting, d.next = make(StaleEntries), make(StaleEntries)
	return stale
}

func newDelay(patience time.Duration) delay {
	return delay{patience: patience, waiting: make(StaleEntries), next: make(StaleEntries)}
}

// NewCleaner opens a socket of its own, in the calling thread's namespace.
func NewCleaner(log *slog.Logger, deleted, failures prometheus.Counter) (*Cleaner, error) {
	sock, err := nfnl.Dial()
	if err != nil {
		return nil, err
	}
	challenges, err := openChallengeSockets()
	if err != nil {
		log.Warn("open challenge sockets: clients that only listen will not notice that their connections ended", "err", err)
	}
	s := &Cleaner{
		sock: sock, challenges: challenges, log: log, deleted: deleted, failures: failures, pending: make(StaleEntries), idle: true,
		syns: newDelay(synGrace), draining: newDelay(DrainTime), since: make(map[drainingBackend]time.Time), again: make(StaleEntries),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go s.run()
	return s, nil
}

// Expect says what is about to be set. A flow that this makes must not be judged by
// what was wanted before it.
func (s *Cleaner) Expect(want state.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming = want
}

// wanted is what was set last and what is being set, at this very moment.
func (s *Cleaner) wanted() [2]state.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]state.State{s.want, s.coming}
}

// Add asks for a sweep. want is what is set now: what has changed back by the
// time of the sweep is judged by that. swept are prefixes where nothing that the
// rules refuse has left an entry.
func (s *Cleaner) Add(stale StaleEntries, want state.State, swept []netip.Prefix) {
	draining := stale.splitDraining(&want)
	deferrable := stale.splitDeferrable(swept)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want, s.coming = want, want
	for vip, v := range draining {
		for b := range v.removedBackends {
			s.since[drainingBackend{vip, b}] = time.Now()
		}
	}
	if len(stale) == 0 && len(deferrable) == 0 && len(draining) == 0 {
		return
	}
	s.idle = false
	if len(stale) > 0 {
		s.pending.merge(stale)
		s.notifyPending()
	}
	s.syns.add(deferrable, func() { s.ripen(&s.syns) })
	s.draining.add(draining, func() { s.ripen(&s.draining) })
}

// ripen sweeps what has waited long enough.
func (s *Cleaner) ripen(d *delay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending.merge(d.due())
	maps.DeleteFunc(s.since, func(_ drainingBackend, at time.Time) bool { return time.Since(at) >= busyDrainTime })
	s.notifyPending()
}

func (s *Cleaner) run() {
	defer close(s.done)
	for {
		select {
		case <-s.wake:
		case <-s.quit:
			_ = s.cleanUp() // what the last Set asked for; an error is recorded
			return
		}
		start := time.Now()
		err := s.cleanUp()
		pause := min(max(cleanupInterval, cleanupPauseFactor*time.Since(start)), maxCleanupPause)
		if err != nil {
			pause = max(pause, cleanupRetry)
			s.notifyPending()
		}
		select {
		case <-time.After(pause):
		case <-s.quit:
			_ = s.cleanUp()
			return
		}
	}
}

func (s *Cleaner) notifyPending() {
	notify.Changed(s.wake)
}

// cleanUp deletes what is pending. What fails stays pending.
func (s *Cleaner) cleanUp() error {
	s.mu.Lock()
	stale := s.pending
	s.pending = make(StaleEntries)
	s.mu.Unlock()
	if len(stale) == 0 {
		return nil
	}
	var deleted []Flow
	err := stale.excludeOwnAddresses()
	if err == nil {
		deleted, err = deleteFlows(s.sock, stale, s.wanted, s.drains, s.rests)
	}
	s.challenge(deleted)
	s.deleted.Add(float64(len(deleted)))
	if err != nil {
		s.failures.Inc()
		s.log.Warn("conntrack entries remain", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	if err != nil {
		s.pending.merge(stale)
	}
	s.requeueResting()
	s.idle = len(s.pending) == 0 && len(s.syns.waiting) == 0 && len(s.draining.waiting) == 0
	return err
}

// LastError is that of the last sweep, empty when it did all it should.
func (s *Cleaner) LastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return ""
	}
	return s.err.Error()
}

// IsIdle reports whether everything asked for is done.
func (s *Cleaner) IsIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}

// Close does what is pending, and what still waits, and ends the Cleaner: no later
// process would do it. Further calls do nothing.
func (s *Cleaner) Close() (err error) {
	s.once.Do(func() {
		s.mu.Lock()
		s.pending.merge(s.syns.all())
		s.pending.merge(s.draining.all())
		s.mu.Unlock()
		close(s.quit)
		<-s.done
		s.challenges.close()
		err = s.sock.Close()
	})
	return err
}

// OwnAddrs are the addresses of this namespace's interfaces. A careless pool may
// contain some, and their flows are not ours.
func OwnAddrs() (own []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of the interfaces: %w", err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			addr, _ := netip.AddrFromSlice(n.IP)
			own = append(own, addr.Unmap())
		}
	}
	return own, nil
}
