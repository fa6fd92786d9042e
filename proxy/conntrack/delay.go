package conntrack

import "time"

// How long stale entries stay.
const (
	// synGrace is how long a SYN may wait for the answer of a removed backend before it counts as
	// lost. A backend that is shutting down answers at once. The client retransmits after a second,
	// and should then reach another backend.
	synGrace = 500 * time.Millisecond
	// localInterval is the time between two cleanups of flows that only processes of the host can
	// have begun, while addresses come all the time. The first one follows after synGrace.
	localInterval = 2 * time.Second
)

// A delay holds entries for a while before their cleanup. Entries that are added meanwhile wait for
// the next round, so that one cleanup serves many.
type delay struct {
	patience      time.Duration // of the first round
	interval      time.Duration // of a round that follows another
	waiting, next StaleEntries
	timer         *time.Timer
}

// add delays the cleanup of stale. When the time is over, ripe is called, which must call due.
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

// due removes and returns the entries that have waited long enough.
func (d *delay) due() StaleEntries {
	stale := d.waiting
	d.waiting, d.next = d.next, make(StaleEntries)
	if len(d.waiting) > 0 {
		d.timer.Reset(d.interval)
	}
	return stale
}

// all removes and returns all entries, however long they have waited.
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
	return delay{patience: patience, interval: patience, waiting: make(StaleEntries), next: make(StaleEntries)}
}
