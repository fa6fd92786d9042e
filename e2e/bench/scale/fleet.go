package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A client is a hollow speaker or a hollow kube-proxy.
type client interface {
	run(ctx context.Context, leaves *atomic.Bool) error
	served() int
}

// A running client.
type running struct {
	client
	stop   context.CancelFunc
	since  time.Time
	leaves *atomic.Bool
	done   chan struct{}
	err    error // once done is closed
}

// A fleet is the clients of one kind, one for each node.
type fleet struct {
	make func(node int) client

	mu  sync.Mutex
	all map[int]*running
}

func (f *fleet) start(ctx context.Context, node int) {
	ctx, stop := context.WithCancel(ctx)
	r := &running{client: f.make(node), stop: stop, since: time.Now(), leaves: new(atomic.Bool), done: make(chan struct{})}
	f.mu.Lock()
	f.all[node] = r
	f.mu.Unlock()
	go func() {
		defer close(r.done)
		r.err = r.run(ctx, r.leaves)
	}()
}

// runs reports whether a node's client has been running for a while: others may still learn that its predecessor has
// left.
func (f *fleet) runs(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.all {
		if nodeName(i) == node {
			return time.Since(r.since) > 5*time.Second
		}
	}
	return false
}

// end ends a client: on purpose, or as a node that loses its power.
func (f *fleet) end(node int, onPurpose bool) error {
	f.mu.Lock()
	r := f.all[node]
	delete(f.all, node)
	f.mu.Unlock()
	r.leaves.Store(onPurpose)
	r.stop()
	<-r.done
	if r.err != nil && !errors.Is(r.err, context.Canceled) {
		return fmt.Errorf("node %d: %w", node, r.err)
	}
	return nil
}

// stop ends all clients at once, after all phases.
func (f *fleet) stop() error {
	var g errgroup.Group
	for _, node := range slices.Collect(maps.Keys(f.all)) {
		g.Go(func() error { return f.end(node, false) })
	}
	return g.Wait()
}

// await returns when each client serves n addresses.
func (f *fleet) await(ctx context.Context, n int) error {
	return lab.Await(ctx, 5*time.Minute, fmt.Sprintf("%d addresses everywhere", n), func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for node, r := range f.all {
			select {
			case <-r.done:
				return fmt.Errorf("node %d ended: %w", node, r.err)
			default:
			}
			if got := r.served(); got != n {
				return fmt.Errorf("node %d has %d", node, got)
			}
		}
		return nil
	})
}
