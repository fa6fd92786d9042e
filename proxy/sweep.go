package proxy

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

const (
	// sweepInterval is the least time between two sweeps. Each makes the kernel
	// walk its whole hash table, so that under a storm of changes one sweep
	// serves many.
	sweepInterval = 100 * time.Millisecond
	// sweepRetry is when a sweep that failed is tried again.
	sweepRetry = time.Second
)

// A sweeper deletes conntrack entries that changes have made wrong. It does so
// beside Set: the walk takes the kernel ten times as long as the change itself,
// and an address would have to wait for it to be announced.
type sweeper struct {
	sock    *socket
	log     *slog.Logger
	metrics *metrics
	wake    chan struct{} // capacity 1
	quit    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	pending purge
	clients []netip.Prefix
	err     error // of the last sweep
	idle    bool  // nothing is pending or under way
}

// newSweeper opens a socket of its own, in the calling thread's namespace.
func newSweeper(log *slog.Logger, m *metrics) (*sweeper, error) {
	sock, err := dial()
	if err != nil {
		return nil, err
	}
	s := &sweeper{
		sock: sock, log: log, metrics: m, pending: make(purge), idle: true,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go s.run()
	return s, nil
}

// add asks for a sweep. clients are the addresses known to be of this node's
// pods.
func (s *sweeper) add(p purge, clients []netip.Prefix) {
	if len(p) == 0 {
		return
	}
	s.mu.Lock()
	s.pending.merge(p)
	s.clients, s.idle = clients, false
	s.mu.Unlock()
	s.poke()
}

func (s *sweeper) run() {
	defer close(s.done)
	for {
		select {
		case <-s.wake:
		case <-s.quit:
			_ = s.sweep() // what the last Set asked for; an error is noted
			return
		}
		pause := sweepInterval
		if s.sweep() != nil {
			pause = sweepRetry
			s.poke()
		}
		select {
		case <-time.After(pause):
		case <-s.quit:
			_ = s.sweep()
			return
		}
	}
}

func (s *sweeper) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sweep deletes what is pending. What fails stays pending.
func (s *sweeper) sweep() error {
	s.mu.Lock()
	p, clients := s.pending, s.clients
	s.pending = make(purge)
	s.mu.Unlock()
	if len(p) == 0 {
		return nil
	}
	deleted, err := deleteFlows(s.sock, p, clients)
	s.metrics.flows.Add(float64(deleted))
	if err != nil {
		s.metrics.flowErrors.Inc()
		s.log.Warn("conntrack entries remain", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	if err != nil {
		s.pending.merge(p)
	}
	s.idle = len(s.pending) == 0
	return err
}

// lastError is that of the last sweep, empty when it did all it should.
func (s *sweeper) lastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return ""
	}
	return s.err.Error()
}

// isIdle says whether everything asked for is done.
func (s *sweeper) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}

// close does what is pending and ends the sweeper.
func (s *sweeper) close() error {
	close(s.quit)
	<-s.done
	return s.sock.close()
}
