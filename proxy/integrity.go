package proxy

import (
	"sync"
	"time"
)

// An Integrity says whether the rules are in the kernel as they were written, as far as the watch
// has noticed.
type Integrity struct {
	Intact bool      `json:"intact"`
	Since  time.Time `json:"since"`            // since when Intact has this value
	Reason string    `json:"reason,omitempty"` // why the rules are not intact
}

// An integrity collects reports of the watch, which come at any time, and the results of
// comparisons with the kernel. A comparison settles only reports from before it.
type integrity struct {
	mu      sync.Mutex
	now     Integrity
	reports uint64
}

func newIntegrity(at time.Time) *integrity {
	return &integrity{now: Integrity{Intact: true, Since: at}}
}

func (i *integrity) get() Integrity {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.now
}

// doubt records a report that the rules differ, or may differ, from what was written. The first
// report is the reason: later ones may be its consequences.
func (i *integrity) doubt(reason string, at time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reports++
	if i.now.Intact {
		i.now = Integrity{Since: at, Reason: reason}
	}
}

// mark must be taken before the kernel is read, for confirm or specify.
func (i *integrity) mark() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.reports
}

// confirm records that the kernel, read after mark, has the rules as written, found or repaired.
func (i *integrity) confirm(mark uint64, at time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.now.Intact && i.reports == mark {
		i.now = Integrity{Intact: true, Since: at}
	}
}

// specify replaces the reason by the result of a comparison.
func (i *integrity) specify(found string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.now.Intact {
		i.now.Reason = found
	}
}
