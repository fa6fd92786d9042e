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
	// sweepInterval is the least time between two sweeps. Each makes the kernel
	// walk its whole hash table, so that under a storm of changes one sweep
	// serves many.
	sweepInterval = 100 * time.Millisecond
	// sweepShare is how many times as long as a sweep took is paused after it, but
	// no longer than sweepPause, so that a large table costs little more of a core.
	sweepShare = 19
	sweepPause = time.Second
	// sweepRetry is when a sweep that failed is tried again.
	sweepRetry = time.Second
	// synPatience is how long a SYN may wait for the answer of a backend that was
	// removed, before it is taken for lost. A backend that only stops answers at
	// once; the client retries after a second, and should find another one.
	synPatience = 500 * time.Millisecond
)

// A Sweeper deletes conntrack entries that changes have made wrong. It does so
// beside Set: the walk takes the kernel ten times as long as the change itself,
// and an address would have to wait for it to be announced.
type Sweeper struct {
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
	pending Purge
	want    state.State // what was set last
	coming  state.State // what is being set: the flows that it makes are there before Set returns
	err     error       // of the last sweep
	idle    bool        // nothing is pending or under way

	// What can wait before it is pending.
	syns, draining delay
	// since is when the backends of draining began to drain, the last time: an earlier purge must
	// not end flows that have begun meanwhile.
	since map[drainingBackend]time.Time
	// again are the backends whose flows the sweep under way lets rest.
	again Purge
}

// A delay keeps a Purge for a while before the sweep. What comes while other things wait is the next
// to wait, so that one sweep serves many.
type delay struct {
	patience      time.Duration
	waiting, next Purge
	timer         *time.Timer
}

// add delays p; ripe is called when it has waited. It must take what is due.
func (d *delay) add(p Purge, ripe func()) {
	switch {
	case len(p) == 0:
	case len(d.waiting) > 0:
		d.next.merge(p)
	default:
		d.waiting = p
		d.timer = time.AfterFunc(d.patience, ripe)
	}
}

// due takes what has waited.
func (d *delay) due() Purge {
	p := d.waiting
	d.waiting, d.next = d.next, make(Purge)
	if len(d.waiting) > 0 {
		d.timer.Reset(d.patience)
	}
	return p
}

// all takes everything, whether it has waited or not.
func (d *delay) all() Purge {
	if d.timer != nil {
		d.timer.Stop()
	}
	p := d.waiting
	p.merge(d.next)
	d.waiting, d.next = make(Purge), make(Purge)
	return p
}

func newDelay(patience time.Duration) delay {
	return delay{patience: patience, waiting: make(Purge), next: make(Purge)}
}

// NewSweeper opens a socket of its own, in the calling thread's namespace.
func NewSweeper(log *slog.Logger, deleted, failures prometheus.Counter) (*Sweeper, error) {
	sock, err := nfnl.Dial()
	if err != nil {
		return nil, err
	}
	challenges, err := openChallengeSockets()
	if err != nil {
		log.Warn("open challenge sockets: clients that only listen will not notice that their connections ended", "err", err)
	}
	s := &Sweeper{
		sock: sock, challenges: challenges, log: log, deleted: deleted, failures: failures, pending: make(Purge), idle: true,
		syns: newDelay(synPatience), draining: newDelay(drainTime), since: make(map[drainingBackend]time.Time), again: make(Purge),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go s.run()
	return s, nil
}

// Expect says what is about to be set. A flow that this makes must not be judged by
// what was wanted before it.
func (s *Sweeper) Expect(want state.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming = want
}

// wanted is what was set last and what is being set, at this very moment.
func (s *Sweeper) wanted() [2]state.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]state.State{s.want, s.coming}
}

// Add asks for a sweep. want is what is set now: what has changed back by the
// time of the sweep is judged by that. swept are prefixes where nothing that the
// rules refuse has left an entry.
func (s *Sweeper) Add(p Purge, want state.State, swept []netip.Prefix) {
	draining := p.splitDraining(&want)
	patient := p.splitPatient(swept)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want, s.coming = want, want
	for vip, v := range draining {
		for b := range v.gone {
			s.since[drainingBackend{vip, b}] = time.Now()
		}
	}
	if len(p) == 0 && len(patient) == 0 && len(draining) == 0 {
		return
	}
	s.idle = false
	if len(p) > 0 {
		s.pending.merge(p)
		s.notifyPending()
	}
	s.syns.add(patient, func() { s.ripen(&s.syns) })
	s.draining.add(draining, func() { s.ripen(&s.draining) })
}

// ripen sweeps what has waited long enough.
func (s *Sweeper) ripen(d *delay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending.merge(d.due())
	maps.DeleteFunc(s.since, func(_ drainingBackend, at time.Time) bool { return time.Since(at) >= busyDrainTime })
	s.notifyPending()
}

func (s *Sweeper) run() {
	defer close(s.done)
	for {
		select {
		case <-s.wake:
		case <-s.quit:
			_ = s.sweep() // what the last Set asked for; an error is recorded
			return
		}
		start := time.Now()
		err := s.sweep()
		pause := min(max(sweepInterval, sweepShare*time.Since(start)), sweepPause)
		if err != nil {
			pause = max(pause, sweepRetry)
			s.notifyPending()
		}
		select {
		case <-time.After(pause):
		case <-s.quit:
			_ = s.sweep()
			return
		}
	}
}

func (s *Sweeper) notifyPending() {
	notify.Changed(s.wake)
}

// sweep deletes what is pending. What fails stays pending.
func (s *Sweeper) sweep() error {
	s.mu.Lock()
	p := s.pending
	s.pending = make(Purge)
	s.mu.Unlock()
	if len(p) == 0 {
		return nil
	}
	var deleted []Flow
	err := p.spareOwn()
	if err == nil {
		deleted, err = deleteFlows(s.sock, p, s.wanted, s.drains, s.rests)
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
		s.pending.merge(p)
	}
	s.sweepAgain()
	s.idle = len(s.pending) == 0 && len(s.syns.waiting) == 0 && len(s.draining.waiting) == 0
	return err
}

// LastError is that of the last sweep, empty when it did all it should.
func (s *Sweeper) LastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return ""
	}
	return s.err.Error()
}

// IsIdle says whether everything asked for is done.
func (s *Sweeper) IsIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}

// Close does what is pending, and what still waits, and ends the sweeper: no later
// process would do it. Further calls do nothing.
func (s *Sweeper) Close() (err error) {
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
