package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/base/retry"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/monitoring"
)

const (
	// passInterval is the time between passes in a storm of events. The first few passes do not
	// wait.
	passInterval = 20 * time.Millisecond
	passBurst    = 10
	// passSlice is how long a pass writes before the cluster is read again: a plan for ten thousand
	// Services is outdated before it is done.
	passSlice = time.Second
	// A pass then writes what no Service waits for, for passSlice/backgroundShare. A new Service waits
	// for the end of that: a change of a pool concerns thousands of claims.
	backgroundShare = 10
	// fullInterval is how often everything is planned again without a detected change.
	fullInterval = 5 * time.Minute
	// writers is how many Services are written concurrently. The requests for one Service are
	// sequential, so this number keeps an API server busy that needs a few milliseconds for each,
	// and does not overload a slower one.
	writers = 16
	// pendingWriteTimeout is how long a written Service is left alone until the watch reports it.
	// If that takes longer, the watch is broken.
	pendingWriteTimeout = 10 * time.Second
)

// Options configure Run.
type Options struct {
	// Config is the configuration for the API server.
	Config *rest.Config
	// Open returns the source after its first complete read.
	Open func(context.Context) (cluster.Source, error)
	// Election is the leader election, nil if there is only one controller.
	Election *Election
	// Key is the Secret with the key that encrypts messages between speakers. The controller
	// creates it if it is missing; the zero value disables that.
	Key cluster.Name
	// Monitoring says where metrics and health are served.
	Monitoring monitoring.Options
	Instance   string // the name of this process, in Events
	Log        *slog.Logger
	Registry   *prometheus.Registry
	// Classes select the Services that Fanfare serves, also for Open.
	Classes cluster.Classes
	// SettleTime is how long a change of a node must last before addresses are balanced over nodes
	// again; zero: DefaultSettleTime.
	SettleTime time.Duration
	// passTime replaces passSlice, for tests that make single passes on a machine of any speed.
	passTime time.Duration
}

// A controller is one running controller. Everything but health is used only by the goroutine of
// lead, and by goroutines that lead waits for.
type controller struct {
	Options
	source   cluster.Source
	writer   writer
	events   *events
	pools    pools
	owners   owners
	announce claimAnnounce
	contests contests
	// rewriteDue is when a contest needs another pass, zero without one.
	rewriteDue time.Time
	adverts    adverts
	metrics    *metrics
	health     health
	// pendingWrites are written Services, as they were before, and when they were written: the
	// snapshot does not have their new version yet.
	pendingWrites map[*cluster.Spec]time.Time
	// allocator is the allocator of the last pass, nil before the first.
	allocator *ipam.Allocator
	retry     *backoff.ExponentialBackOff
}

// Run runs a controller until ctx ends.
func Run(ctx context.Context, o Options) error {
	c, err := newController(o)
	if err != nil {
		return err
	}
	stop, err := c.serve()
	if err != nil {
		return err
	}
	defer stop()
	if c.source, err = o.Open(ctx); err != nil {
		return err
	}
	c.health.ready.Store(true)
	if o.Election == nil {
		c.lead(ctx)
		return nil
	}
	o.Election.run(ctx, c.writer.leases, o.Log, c.lead)
	return nil
}

// newController returns a controller that has not read or written anything yet.
func newController(o Options) (*controller, error) {
	m := newMetrics(o.Registry)
	client, err := newClient(o.Config, newThrottle(m))
	if err != nil {
		return nil, err
	}
	c := &controller{
		Options:       o,
		metrics:       m,
		pendingWrites: map[*cluster.Spec]time.Time{},
		retry:         retry.Backoff(50*time.Millisecond, 30*time.Second),
	}
	c.events = newEvents(client, o.Instance, o.Log)
	c.writer = writer{client, c.events.recordService, o.Classes}
	c.forgetWrites()
	return c, nil
}

// forgetWrites drops what is known about written statuses and claims. Otherwise a controller that
// leads again would not repair what another controller has written meanwhile.
func (c *controller) forgetWrites() {
	c.pools = pools{client: c.writer.client, events: c.events}
	c.owners = newOwners(c.SettleTime)
	c.adverts = adverts{client: c.writer.client}
	c.announce = claimAnnounce{}
	c.contests = contests{}
}

// lead makes a pass whenever something has changed, until ctx ends. It writes nothing after that.
func (c *controller) lead(ctx context.Context) {
	c.metrics.leading.Set(1)
	defer c.metrics.leading.Set(0)
	defer c.health.idle()
	c.forgetWrites()
	var keys sync.WaitGroup
	keys.Go(func() { c.keepKey(ctx) })
	defer keys.Wait()
	timer := time.NewTimer(0) // the first pass needs no event
	defer timer.Stop()
	storm := rate.NewLimiter(rate.Every(passInterval), passBurst)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.source.Changed():
		case <-timer.C:
		}
		timer.Reset(c.wake(c.pass(ctx)))
		if storm.Wait(ctx) != nil {
			return
		}
	}
}

// wake returns the time until the next pass if nothing changes.
func (c *controller) wake(left bool, errs []error) time.Duration {
	if len(errs) != 0 {
		return c.retry.NextBackOff()
	}
	c.retry.Reset()
	if left {
		return 0
	}
	next := fullInterval
	if c.pools.due || c.adverts.due {
		next = min(next, poolInterval)
	}
	if len(c.pendingWrites)+len(c.owners.pendingWrites) != 0 {
		next = min(next, pendingWriteTimeout)
	}
	if !c.rewriteDue.IsZero() {
		next = min(next, max(0, time.Until(c.rewriteDue)))
	}
	if !c.owners.due.IsZero() {
		next = min(next, max(0, time.Until(c.owners.due)))
	}
	return next
}

// pass plans on the newest snapshot, and writes. The addresses of Services come first. The statuses
// of pools and advertisements come last, because traffic does not depend on them. left reports that
// there was no time for all writes, and errs has the failed ones.
func (c *controller) pass(ctx context.Context) (left bool, errs []error) {
	began := time.Now()
	c.health.progress()
	defer c.health.idle()
	snap := c.source.Snapshot()
	if c.allocator == nil {
		c.allocator = ipam.NewAllocator(snap, settled)
	} else {
		c.allocator = c.allocator.Next(snap)
	}
	assignments, reasons := c.allocator.Allocate(time.Now())
	c.metrics.count(snap, assignments, reasons)
	c.confirm(snap)
	c.contests.adopt(c.allocator.Open, began)
	todo := plan(c.allocator, assignments, reasons, c.contests, began)
	slice := cmp.Or(c.passTime, passSlice)
	left, errs = c.carryOut(ctx, todo, began.Add(slice))
	c.rewriteDue = c.contests.forget(began, snap, todo.waiting)
	background := time.Now().Add(slice / backgroundShare)
	more, failed := c.prefer(ctx, snap, background)
	left, errs = left || more, append(errs, failed...)
	more, failed = c.reportAnnounce(ctx, snap, background)
	left, errs = left || more, append(errs, failed...)
	errs = append(errs, c.events.again(ctx)...)
	errs = append(errs, c.pools.report(ctx, snap, assignments)...)
	errs = append(errs, c.adverts.report(ctx, snap)...)
	c.metrics.observe(time.Since(began), errs)
	if ctx.Err() == nil {
		c.logFailures(errs)
	}
	return left, errs
}

// carryOut executes the plan, until the time is over, in the order of [writePlan].
func (c *controller) carryOut(ctx context.Context, t writePlan, until time.Time) (left bool, errs []error) {
	each := func(n int, write func(i int) error) {
		more, failed := c.each(ctx, until, n, write)
		left, errs = left || more, append(errs, failed...)
	}
	each(len(t.gone), func(i int) error { return c.release(ctx, t.gone[i]) })
	updates := c.notPending(t.updates)
	done := make([]bool, len(updates))
	each(len(updates), func(i int) (err error) {
		done[i], err = c.update(ctx, updates[i])
		return err
	})
	for i, n := range updates {
		if done[i] {
			c.pendingWrites[n.spec] = time.Now()
		}
		if done[i] && n.rewrites {
			c.contests[n.spec.Name] = c.contests.of(n.spec).rewritten(time.Now(), n.overwritten)
		}
	}
	each(len(t.leftover), func(i int) error { return c.release(ctx, t.leftover[i]) })
	return left, errs
}

// each calls write n times, until the time is over; up to writers calls run concurrently. left
// reports that some calls were not made. A failed write does not stop the others.
func (c *controller) each(ctx context.Context, until time.Time, n int,
	write func(i int) error) (left bool, errs []error) {
	failures := make([]error, n)
	var g errgroup.Group
	g.SetLimit(writers)
	for i := range n {
		if ctx.Err() != nil || time.Now().After(until) {
			left = true
			break
		}
		g.Go(func() error {
			failures[i] = write(i)
			c.health.progress()
			return nil
		})
	}
	g.Wait()
	return left, slices.DeleteFunc(failures, func(err error) bool { return err == nil })
}

// update executes a serviceUpdate. written reports that the status was written.
func (c *controller) update(ctx context.Context, n serviceUpdate) (written bool, err error) {
	err = c.writer.update(ctx, n)
	c.metrics.wrote("update", err)
	if err != nil {
		return false, err
	}
	if n.writesStatus() {
		c.Log.Info("service settled", "service", n.spec.Name.String(), "vip", n.addrs, "reason", n.condition.Code,
			"why", n.condition.Message)
	} else {
		c.Log.Info("claimed the addresses of the status", "service", n.spec.Name.String(), "vip", n.addrs)
	}
	return n.writesStatus(), nil
}

// release executes a release: it removes holders from a claim, or deletes the claim.
func (c *controller) release(ctx context.Context, r release) error {
	err := c.writer.release(ctx, r)
	c.metrics.wrote("release", err)
	if err == nil {
		c.Log.Info("claim released", "vip", r.old.Addr, "holders", len(r.old.Holders)-len(r.from), "reserved",
			r.old.Reserved, "reason", r.why)
		for _, refused := range r.refused {
			c.events.recordUnreserved(ctx, refused)
		}
	}
	return err
}

// notPending returns the updates of Services without a pending write.
func (c *controller) notPending(all []serviceUpdate) []serviceUpdate {
	var out []serviceUpdate
	for _, n := range all {
		if at, ok := c.pendingWrites[n.spec]; !ok || time.Since(at) > pendingWriteTimeout {
			out = append(out, n)
		}
	}
	return out
}

// confirm drops the pending writes whose Service has another version in the snapshot.
func (c *controller) confirm(snap *cluster.Snapshot) {
	if len(c.pendingWrites) == 0 {
		return
	}
	awaited := make(map[*cluster.Spec]time.Time, len(c.pendingWrites))
	for s := range snap.Services.All() {
		if at, ok := c.pendingWrites[s.Spec]; ok {
			awaited[s.Spec] = at
		}
	}
	c.pendingWrites = awaited
}

// logFailures logs the errors of a pass. An outdated snapshot is normal.
func (c *controller) logFailures(errs []error) {
	behind := len(errs)
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return errors.Is(err, errStale) })
	if behind -= len(errs); behind != 0 {
		c.Log.Debug("pass: the snapshot is behind", "writes", behind)
	}
	if len(errs) != 0 {
		c.Log.Error("pass: will be tried again", "failures", len(errs), "err", errs[0])
	}
}
