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
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A client is a hollow speaker or a hollow kube-proxy.
type client interface {
	run(ctx context.Context, leaves *atomic.Bool) error
	served() int
	// received reports whether the client has a slice with these endpoints.
	received(*discoveryv1.EndpointSlice) bool
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
	r := &running{
		client: f.make(node), stop: stop, since: time.Now(), leaves: new(atomic.Bool), done: make(chan struct{}),
	}
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
	return f.awaitEach(ctx, fmt.Sprintf("%d addresses everywhere", n), func(c client) error {
		if got := c.served(); got != n {
			return fmt.Errorf("has %d", got)
		}
		return nil
	})
}

// awaitSlice returns when each client has received a slice.
func (f *fleet) awaitSlice(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	return f.awaitEach(ctx, s.Name+" everywhere", func(c client) error {
		if !c.received(s) {
			return errors.New("has other endpoints")
		}
		return nil
	})
}

// awaitEach returns when check accepts each client.
func (f *fleet) awaitEach(ctx context.Context, what string, check func(client) error) error {
	return lab.Await(ctx, 5*time.Minute, what, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for node, r := range f.all {
			select {
			case <-r.done:
				return fmt.Errorf("node %d ended: %w", node, r.err)
			default:
			}
			if err := check(r.client); err != nil {
				return fmt.Errorf("node %d: %w", node, err)
			}
		}
		return nil
	})
}
