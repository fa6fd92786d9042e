package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Test is [synctest.Test] on one processor for the whole process.
//
// All timers of a bubble share one context of the race detector, and two threads may run
// timers of it at once: the thread that advances time, and a thread that finds another
// timer's channel due (Go 1.26, runtime, timer.maybeRunChan). That corrupts the context,
// and the process ends by SIGSEGV or by a failed CHECK of ThreadSanitizer, without a fault
// in the test. On one processor they do not interrupt each other.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	processors.one()
	defer processors.all()
	synctest.Test(t, f)
}

// Wait is [synctest.Wait].
func Wait() { synctest.Wait() }

// processors counts the bubbles of parallel tests: the last to end restores the setting
// that the first has changed.
var processors processorLimit

type processorLimit struct {
	mu      sync.Mutex
	bubbles int
	before  int
}

func (c *processorLimit) one() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bubbles++; c.bubbles == 1 {
		c.before = runtime.GOMAXPROCS(1)
	}
}

func (c *processorLimit) all() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bubbles--; c.bubbles == 0 {
		runtime.GOMAXPROCS(c.before)
	}
}
