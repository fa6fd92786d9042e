package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// creators is the number of clients that create Services concurrently.
const creators = 8

// A fill holds the measurements of creating many Services. Times start at the first
// request.
type fill struct {
	Services int
	Created  time.Duration   // the API server has created the last one
	Assigned time.Duration   // a client has seen the last one's address
	Kernel   time.Duration   // all are in the kernel of Fanfare's node
	Proxy    time.Duration   // kube-proxy has written all rules
	Each     measure.Sample  // from a Service's own request to its address
	Spent    []measure.Spent // CPU time until all were created and written
}

// fill creates Services until there are n, and waits until all programs have processed
// them.
func (b *bench) fill(ctx context.Context, n int) (f fill, err error) {
	ctx, cancel := context.WithTimeout(ctx, fillLimit)
	defer cancel()
	f.Services = n - b.background
	before, err := b.usage()
	if err != nil {
		return f, err
	}
	began := time.Now()
	requested, err := b.createBackground(ctx, n)
	f.Created = time.Since(began)
	if err != nil {
		return f, err
	}
	var last time.Time
	for name, at := range requested {
		is, err := b.seen.Of(ctx, name)
		if err != nil {
			return f, err
		}
		f.Each = append(f.Each, is.At.Sub(at))
		if is.At.After(last) {
			last = is.At
		}
	}
	f.Assigned = last.Sub(began)
	b.background = n
	if err := b.awaitKernels(ctx, began, &f); err != nil {
		return f, err
	}
	after, err := b.usage()
	f.Spent = measure.Spend(before, after)
	return f, err
}

// createBackground returns the time of each Service's request.
func (b *bench) createBackground(ctx context.Context, n int) (map[string]time.Time, error) {
	var mu sync.Mutex
	requested := make(map[string]time.Time, n-b.background)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(creators)
	for i := b.background; i < n; i++ {
		g.Go(func() error {
			name := backgroundName(i)
			if err := b.api.createSlice(ctx, newSlice(name, backgroundPods(i, 0)...)); err != nil {
				return err
			}
			mu.Lock()
			requested[name] = time.Now()
			mu.Unlock()
			_, err := b.api.createService(ctx, newService(name))
			return err
		})
	}
	return requested, g.Wait()
}

// awaitKernels waits for the rules of both programs. It polls rarely, because a query costs
// CPU time of the measured programs.
func (b *bench) awaitKernels(ctx context.Context, began time.Time, f *fill) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for f.Kernel == 0 || f.Proxy == 0 {
		if f.Kernel == 0 {
			have, err := b.forwarded(ctx)
			if err != nil {
				return err
			}
			if have >= b.background {
				f.Kernel = time.Since(began)
			}
		}
		if f.Proxy == 0 {
			synced, err := b.proxySynced(ctx, proxyNode)
			if err != nil {
				return err
			}
			if synced {
				f.Proxy = time.Since(began)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("all in the kernel: %w", ctx.Err())
		}
	}
	return nil
}

// quiet waits until the one kube-proxy has no pending changes.
func (b *bench) quiet(ctx context.Context) error { return b.awaitQuiet(ctx, proxyNode) }

// awaitQuiet waits until no kube-proxy of these nodes has pending changes.
func (b *bench) awaitQuiet(ctx context.Context, nodes ...string) error {
	return lab.Await(ctx, eventLimit, "quiet", func() error {
		for _, node := range nodes {
			synced, err := b.proxySynced(ctx, node)
			if err != nil {
				return err
			}
			if !synced {
				return fmt.Errorf("kube-proxy on %s is behind", node)
			}
		}
		return nil
	})
}
