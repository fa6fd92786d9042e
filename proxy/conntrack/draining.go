package conntrack

import (
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// drainTime is how long a flow without an end of its own, as of UDP, stays with a backend
// that drains beside others. Answers that are under way from there arrive in that time.
const drainTime = time.Second

const (
	// restTime is how long such a flow must rest, after drainTime, to leave the backend: the kernel
	// forgets it then. If it were deleted, an answer that is under way would arrive untranslated.
	restTime = time.Second
	// restInterval is the time between two sweeps that look for flows which have not begun to rest.
	restInterval = restTime / 2
	// maxRestInterval is the longest time from the end of a sweep to the next one in which a flow
	// cannot rest unseen. The pause after a sweep of a large table is shorter.
	maxRestInterval = maxCleanupPause + restInterval/2
	// busyTime is how long a flow stays that does not rest: in that time each sweep has found that
	// it had packets since the one before.
	busyTime = 2 * restTime
	// maxDrainTime is when every flow leaves, even if sweeps come too rarely to see a rest.
	maxDrainTime = 10 * time.Second
)

// splitDraining takes out of stale and returns the flows of protocols without an end that leave a
// backend which drains: it gets no new flows from now on, or there is another one only now.
// It still answers, and what is under way must arrive.
func (stale StaleEntries) splitDraining(want *state.State) StaleEntries {
	draining := make(StaleEntries)
	for vip, v := range stale {
		for b, s := range v.removedBackends {
			if fe := want.Frontend(vip, b.Port); b.Proto != state.TCP && fe != nil && fe.Drains(b.Backend) {
				draining.at(vip).removedBackends[b] = s
				delete(v.removedBackends, b)
			}
		}
		for port := range v.recovered {
			if fe := want.Frontend(vip, port); fe != nil {
				for _, b := range fe.Draining {
					draining.at(vip).removedBackends[removedBackend{port, b}] = state.SideExternal | state.SideInternal
				}
			}
			delete(v.recovered, port)
		}
		if v.empty() {
			delete(stale, vip)
		}
	}
	return draining
}

type drainingBackend struct {
	vip netip.Addr
	removedBackend
}

// A drain is what the Cleaner remembers of a draining backend.
type drain struct {
	began time.Time // last: a cleanup for an earlier change must not end flows that began after it
	// watched is since when the sweeps have come often enough to see that a flow rests; zero before
	// the first.
	watched time.Time
	// started is when the last sweep began. swept is when the last one that succeeded ended; zero
	// before the first, and after one that failed.
	started, swept time.Time
}

// watch records that a sweep begins.
func (c *Cleaner) watch(stale StaleEntries, now time.Time) {
	for vip, v := range stale {
		for b := range v.removedBackends {
			d := c.drains[drainingBackend{vip, b}]
			if d == nil || now.Sub(d.began) < drainTime {
				continue
			}
			if d.watched.IsZero() || now.Sub(d.swept) > maxRestInterval {
				d.watched = now
			}
			d.started = now
		}
	}
}

// watchEnd records that a sweep has ended.
func (c *Cleaner) watchEnd(stale StaleEntries, now time.Time, err error) {
	if err != nil {
		now = time.Time{} // it may have shortened nothing
	}
	for vip, v := range stale {
		for b := range v.removedBackends {
			if d := c.drains[drainingBackend{vip, b}]; d != nil {
				d.swept = now
			}
		}
	}
}

// drainOf returns the drain of a flow's backend, as far as the Cleaner remembers it. It returns nil
// for a flow that ends at once, because its source is forbidden. The caller holds the lock.
func (c *Cleaner) drainOf(f *Flow) *drain {
	if forbids(&c.want, f) {
		return nil
	}
	return c.drains[drainingBackend{f.VIP, removedBackend{f.Port, f.Backend}}]
}

// hasDrainTime says whether a flow still has its moment with a backend that drains.
func (c *Cleaner) hasDrainTime(f *Flow) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.drainOf(f)
	return d != nil && time.Since(d.began) < drainTime
}

// A departure is how a stale flow leaves.
type departure int

const (
	deleted   departure = iota
	shortened           // the kernel forgets it when it has rested for restTime
	expiring            // it has been shortened, and had no packet since
)

// departure decides how a stale flow leaves. The next sweep looks again for one that may rest.
func (c *Cleaner) departure(f *Flow) departure {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.drainOf(f)
	if d == nil || time.Since(d.began) >= maxDrainTime || !backendDrains(&c.want, f) {
		return deleted
	}
	how := shortened
	switch {
	case f.nearEnd:
		how = expiring
	case d.started.Sub(d.watched) >= busyTime:
		return deleted
	}
	c.again.at(f.VIP).removedBackends[removedBackend{f.Port, f.Backend}] = state.SideExternal | state.SideInternal
	return how
}

// requeueResting lets what may rest wait once more.
func (c *Cleaner) requeueResting() {
	again := c.again
	c.again = make(StaleEntries)
	c.resting.add(again, func() { c.ripen(&c.resting) })
}

const (
	ctNew      = 0 // IPCTNL_MSG_CT_NEW: changes an entry that exists
	ctaTimeout = 7 // its remaining lifetime, in seconds
)

// expiry makes the kernel forget a flow that gets no packet for restTime: each packet gives it its
// full lifetime again.
var expiry = flowChange{verb: "shorten", message: ctNew, attributes: func() []byte {
	var e nfnl.Encoder
	e.Uint32(ctaTimeout, uint32(restTime/time.Second))
	return e.B
}()}
