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

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

const (
	// cleanupInterval is the shortest time between two cleanups. Each makes the kernel walk its
	// whole hash table, so one cleanup serves many changes.
	cleanupInterval = 100 * time.Millisecond
	// After a cleanup, the pause is cleanupPauseFactor times as long as the cleanup took, but at
	// most maxCleanupPause. So a large table costs little CPU time.
	cleanupPauseFactor = 19
	maxCleanupPause    = time.Second
	// cleanupRetry is the pause after a failed cleanup.
	cleanupRetry = time.Second
)

// A Cleaner deletes stale conntrack entries in the background: the kernel's walk takes ten times as
// long as the change itself, and would delay the announcement of an address.
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
	want    state.State // the State that was set last
	coming  state.State // the State being set: its flows may exist before Set returns
	err     error       // of the last cleanup
	idle    bool        // nothing is pending or in progress

	// syns, local, draining and resting hold entries that wait before they become pending.
	syns, local, draining, resting delay

	drains map[drainingBackend]*drain
	// again has the backends of flows that the current cleanup lets expire. The next one looks for
	// them again.
	again StaleEntries
}

// NewCleaner opens the Cleaner's own socket, in the calling thread's namespace.
func NewCleaner(log *slog.Logger, deleted, failures prometheus.Counter) (*Cleaner, error) {
	sock, err := nfnl.Dial()
	if err != nil {
		return nil, err
	}
	challenges, err := openChallengeSockets()
	if err != nil {
		log.Warn("open challenge sockets: clients that only listen will not notice that their connections ended", "err",
			err)
	}
	c := &Cleaner{
		sock: sock, challenges: challenges, log: log, deleted: deleted, failures: failures, pending: make(StaleEntries),
		idle: true, syns: newDelay(synGrace), local: newDelay(synGrace), draining: newDelay(drainTime),
		resting: newDelay(restInterval), drains: make(map[drainingBackend]*drain), again: make(StaleEntries),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	c.local.interval = localInterval
	go c.run()
	return c, nil
}

// Expect announces the State that is about to be set. Its first flows must not be judged by the
// State before it.
func (c *Cleaner) Expect(want state.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coming = want
}

// wanted returns the State that was set last, and the State being set.
func (c *Cleaner) wanted() [2]state.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return [2]state.State{c.want, c.coming}
}

// Add requests a cleanup. The cleanup judges flows by want, or a later State, so a backend that has
// returned keeps its flows. swept are prefixes whose untranslated flows were deleted.
func (c *Cleaner) Add(stale StaleEntries, want state.State, swept []netip.Prefix) {
	draining := stale.splitDraining(&want)
	deferrable, local := stale.splitDeferrable(swept)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want, c.coming = want, want
	for vip, v := range draining {
		for b := range v.removedBackends {
			c.drains[drainingBackend{vip, b}] = &drain{began: time.Now()}
		}
	}
	if len(stale)+len(deferrable)+len(local)+len(draining) == 0 {
		return
	}
	c.idle = false
	if len(stale) > 0 {
		c.pending.merge(stale)
		c.notifyPending()
	}
	c.syns.add(deferrable, func() { c.ripen(&c.syns) })
	c.local.add(local, func() { c.ripen(&c.local) })
	c.draining.add(draining, func() { c.ripen(&c.draining) })
}

// ripen makes the entries pending that have waited long enough.
func (c *Cleaner) ripen(d *delay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending.merge(d.due())
	maps.DeleteFunc(c.drains, func(_ drainingBackend, d *drain) bool { return time.Since(d.began) >= maxDrainTime })
	c.notifyPending()
}

func (c *Cleaner) run() {
	defer close(c.done)
	for {
		select {
		case <-c.wake:
		case <-c.quit:
			_ = c.cleanUp() // what the last Set asked for; an error is recorded
			return
		}
		start := time.Now()
		err := c.cleanUp()
		pause := min(max(cleanupInterval, cleanupPauseFactor*time.Since(start)), maxCleanupPause)
		if err != nil {
			pause = max(pause, cleanupRetry)
			c.notifyPending()
		}
		select {
		case <-time.After(pause):
		case <-c.quit:
			_ = c.cleanUp()
			return
		}
	}
}

func (c *Cleaner) notifyPending() {
	notify.Changed(c.wake)
}

// cleanUp deletes the pending entries. If it fails, they stay pending.
func (c *Cleaner) cleanUp() error {
	c.mu.Lock()
	stale := c.pending
	c.pending = make(StaleEntries)
	c.watch(stale, time.Now())
	c.mu.Unlock()
	if len(stale) == 0 {
		return nil
	}
	var deleted []Flow
	err := stale.excludeOwnAddresses()
	if err == nil {
		deleted, err = deleteFlows(c.sock, stale, c.wanted, c.hasDrainTime, c.departure)
	}
	c.challenge(deleted)
	c.deleted.Add(float64(len(deleted)))
	if err != nil {
		c.failures.Inc()
		c.log.Warn("conntrack entries remain", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	c.watchEnd(stale, time.Now(), err)
	if err != nil {
		c.pending.merge(stale)
	}
	c.requeueResting()
	c.idle = len(c.pending) == 0 && len(c.syns.waiting)+len(c.local.waiting) == 0 && len(c.draining.waiting) == 0 &&
		len(c.resting.waiting) == 0
	return err
}

// LastError returns the error of the last cleanup, empty if it succeeded.
func (c *Cleaner) LastError() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return ""
	}
	return c.err.Error()
}

// IsIdle reports whether all requested cleanups are done.
func (c *Cleaner) IsIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle
}

// Close cleans up what is pending or delayed, because no later process would, and stops the
// Cleaner. Flows that drain stay, or go when they rest: what remains is for the next process, which
// adopts the table. Further calls do nothing.
func (c *Cleaner) Close() (err error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.pending.merge(c.syns.all())
		c.pending.merge(c.local.all())
		c.pending.merge(c.draining.all())
		c.pending.merge(c.resting.all())
		c.mu.Unlock()
		close(c.quit)
		<-c.done
		c.challenges.close()
		err = c.sock.Close()
	})
	return err
}

// OwnAddrs returns the addresses of the interfaces in this namespace. A pool may contain some by
// mistake; their flows are not for this package.
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
