package conntrack

import (
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
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
	// end is when flows leave. The last change counts: a backend may return and drain again, and an
	// earlier change must not end flows that began in between.
	end   time.Time
	sides state.Sides
}

// beginDrains lets the flows of draining backends leave after drainTime. The caller holds the lock.
func (c *Cleaner) beginDrains(draining StaleEntries) {
	if len(draining) == 0 {
		return
	}
	end := time.Now().Add(drainTime)
	for vip, v := range draining {
		for b, sides := range v.removedBackends {
			key := drainingBackend{vip, b}
			c.drains[key] = drain{end, c.drains[key].sides | sides}
		}
	}
	time.AfterFunc(drainTime, c.endDrains)
}

// endDrains makes the flows pending whose drain is over.
func (c *Cleaner) endDrains() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b, d := range c.drains {
		if time.Until(d.end) <= 0 {
			c.pending.at(b.vip).removedBackends[b.removedBackend] |= d.sides
			delete(c.drains, b)
		}
	}
	c.notifyPending()
}

// hasDrainTime reports whether a flow stays, though another change makes it stale, because its
// backend has just begun to drain. Flows of a forbidden source, or to a backend that is gone, end at
// once: the address may belong to another pod.
func (c *Cleaner) hasDrainTime(f *Flow) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, drains := c.drains[drainingBackend{f.VIP, removedBackend{f.Port, f.Backend}}]
	return drains && time.Until(d.end) > 0 && backendDrains(&c.want, f) && !forbids(&c.want, f)
}
