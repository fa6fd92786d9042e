package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The times of a Lease are those of Kubernetes' own components.
const (
	leaseDuration = 15 * time.Second // after which another one takes it
	renewDeadline = 10 * time.Second // after which its holder writes no more
	renewPeriod   = 2 * time.Second
)

// An Election is a Lease that one of several controllers holds. It spares the
// API server two controllers that get in each other's way. That no address is
// given twice does not hang on it.
//
// client-go's leaderelection does the same; it brings along the types of all of
// Kubernetes: a bare program that imports it grew by 10 MB, and each speaker is
// this binary too.
type Election struct {
	Namespace, Name string
	Identity        string // of this process, unlike any other's
}

// A ballot is one process's view of the Lease.
type ballot struct {
	Election
	client *rest.RESTClient
	log    *slog.Logger
	// seen is the record that was read last, and since when it has stood there
	// unchanged by our own clock: clocks of two machines are not compared.
	seen  *coordinationv1.Lease
	since time.Time
	// renewed is when the last request that got or renewed the Lease was sent:
	// the API server may have written it that early.
	renewed time.Time
}

// run calls lead while this process holds the Lease, until ctx ends. The context
// of lead ends in good time before another process can get it.
func (e *Election) run(ctx context.Context, client *rest.RESTClient, log *slog.Logger, lead func(context.Context)) {
	b := &ballot{Election: *e, client: client, log: log}
	for b.acquire(ctx) {
		log.Info("leading", "identity", e.Identity)
		b.hold(ctx, lead)
		log.Info("not leading any more", "identity", e.Identity)
	}
}

// acquire returns true when this process holds the Lease, and false when ctx has
// ended.
func (b *ballot) acquire(ctx context.Context) bool {
	tick := time.NewTicker(renewPeriod)
	defer tick.Stop()
	for {
		taken, err := b.try(ctx)
		if taken {
			return ctx.Err() == nil
		}
		if err != nil && ctx.Err() == nil {
			b.log.Warn("lease", "err", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// hold leads and renews, until ctx ends or the Lease is lost. It returns when
// lead has.
func (b *ballot) hold(ctx context.Context, lead func(context.Context)) {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		lead(leading)
	}()
	b.renew(ctx)
	stop()
	<-done
	if ctx.Err() != nil {
		b.resign(context.WithoutCancel(ctx))
	}
}

// renew renews until ctx ends, another one has the Lease, or it was not renewed
// for renewDeadline.
func (b *ballot) renew(ctx context.Context) {
	tick := time.NewTicker(renewPeriod)
	defer tick.Stop()
	for {
		deadline := b.renewed.Add(renewDeadline)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		attempt, cancel := context.WithDeadline(ctx, deadline)
		held, err := b.try(attempt)
		cancel()
		switch {
		case held:
		case err == nil:
			return // Somebody else has it.
		case !time.Now().Before(deadline):
			b.log.Warn("lease not renewed", "err", err)
			return
		}
	}
}

// try takes or renews the Lease, if that is possible now. It is not an error
// that another one holds it.
func (b *ballot) try(ctx context.Context) (held bool, err error) {
	old := &coordinationv1.Lease{}
	err = b.client.Get().Namespace(b.Namespace).Resource("leases").Name(b.Name).Do(ctx).Into(old)
	switch {
	case apierrors.IsNotFound(err):
		old = nil
	case err != nil:
		return false, fmt.Errorf("lease %s/%s: %w", b.Namespace, b.Name, err)
	}
	if old != nil && (b.seen == nil || b.seen.ResourceVersion != old.ResourceVersion || b.seen.UID != old.UID) {
		b.seen, b.since = old, time.Now()
	}
	if old != nil && !b.mine(old) && !b.expired(old) {
		return false, nil
	}
	now := time.Now()
	if err := b.write(ctx, b.record(old, now)); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return false, fmt.Errorf("lease %s/%s: %w", b.Namespace, b.Name, err)
	}
	b.renewed = now
	return true, nil
}

func (b *ballot) mine(l *coordinationv1.Lease) bool {
	return l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == b.Identity
}

// expired says whether nobody holds the Lease, or its holder has not renewed it
// for as long as it said it would at most.
func (b *ballot) expired(l *coordinationv1.Lease) bool {
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return true
	}
	d := leaseDuration
	if s := l.Spec.LeaseDurationSeconds; s != nil {
		d = time.Duration(*s) * time.Second
	}
	return time.Since(b.since) > d
}

// record is the Lease, held by this process.
func (b *ballot) record(old *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}}
	if old != nil {
		l = old.DeepCopy()
	}
	if !b.mine(l) {
		l.Spec.AcquireTime = new(metav1.NewMicroTime(now))
		n := int32(0)
		if l.Spec.LeaseTransitions != nil {
			n = *l.Spec.LeaseTransitions + 1
		}
		l.Spec.LeaseTransitions = &n
	}
	l.Spec.HolderIdentity = &b.Identity
	l.Spec.LeaseDurationSeconds = new(int32(leaseDuration / time.Second))
	l.Spec.RenewTime = new(metav1.NewMicroTime(now))
	return l
}

// write creates the Lease, or updates it at the version that was read.
func (b *ballot) write(ctx context.Context, l *coordinationv1.Lease) error {
	if l.ResourceVersion == "" {
		return b.client.Post().Namespace(l.Namespace).Resource("leases").Body(l).Do(ctx).Error()
	}
	return b.client.Put().Namespace(l.Namespace).Resource("leases").Name(l.Name).Body(l).Do(ctx).Error()
}

// resign leaves the Lease to whoever wants it, so that nobody waits for it to
// run out.
func (b *ballot) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewPeriod)
	defer cancel()
	l := &coordinationv1.Lease{}
	err := b.client.Get().Namespace(b.Namespace).Resource("leases").Name(b.Name).Do(ctx).Into(l)
	if err == nil && b.mine(l) {
		l.Spec.HolderIdentity = new("")
		l.Spec.LeaseDurationSeconds = new(int32(1))
		err = b.write(ctx, l)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		b.log.Warn("lease not given back", "err", err)
	}
}
