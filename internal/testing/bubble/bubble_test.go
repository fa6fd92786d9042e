package bubble

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// The race detector crashes on this with two processors: channels of timers are read while
// timer functions run.
func TestTimersAtOnce(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	Test(t, func(t *testing.T) {
		const each, times = 8, 5000
		var all sync.WaitGroup
		for range each {
			all.Go(func() {
				for range times {
					due := time.NewTimer(time.Millisecond)
					time.Sleep(time.Millisecond)
					select {
					case <-due.C:
					default:
					}
				}
			})
			all.Go(func() {
				for range times {
					called := make(chan bool)
					time.AfterFunc(time.Millisecond, func() { close(called) })
					<-called
				}
			})
		}
		all.Wait()
	})
	if after := runtime.GOMAXPROCS(0); after != before {
		t.Errorf("%d processors, and %d afterwards", before, after)
	}
}

// Bubbles of parallel tests end in any order.
func TestInParallel(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("all", func(t *testing.T) {
		for range 4 {
			t.Run("one", func(t *testing.T) {
				t.Parallel()
				Test(t, func(t *testing.T) {
					time.Sleep(time.Hour)
					if n := runtime.GOMAXPROCS(0); n != 1 {
						t.Errorf("%d processors in a bubble", n)
					}
				})
			})
		}
	})
	if after := runtime.GOMAXPROCS(0); after != before {
		t.Errorf("%d processors, and %d afterwards", before, after)
	}
}
