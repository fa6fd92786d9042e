package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Test is [synctest.Test], while the whole process has one processor.
//
// All timers of a bubble share one context of the race detector, and two threads may run
// timers of it at once: the one that lets time pass, and one that finds the channel of
// another timer due (Go 1.26, runtime, timer.maybeRunChan). That corrupts the context,
// and the process ends by SIGSEGV or by a failed CHECK of ThreadSanitizer, in a test that
// has done nothing wrong. On one processor none of them is interrupted by the other.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	processors.one()
	defer processors.all()
	synctest.Test(t, f)
}

// Wait is [synctest.Wait].
func Wait() { synctest.Wait() }

// processors counts the bubbles of tests that run in parallel: the last one to end gives
// back what the first one took.
var processors crowd

type crowd struct {
	mu      sync.Mutex
	bubbles int
	before  int
}

func (c *crowd) one() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bubbles++; c.bubbles == 1 {
		c.before = runtime.GOMAXPROCS(1)
	}
}

func (c *crowd) all() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bubbles--; c.bubbles == 0 {
		runtime.GOMAXPROCS(c.before)
	}
}
