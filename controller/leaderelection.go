package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// The times of a Lease are those of Kubernetes' own components.
const (
	leaseDuration = 15 * time.Second // after which another controller may take it
	renewDeadline = 10 * time.Second // after which its holder stops writing
	renewPeriod   = 2 * time.Second
)

// An Election is a Lease that one of several controllers holds, so that two controllers do not
// write against each other. Unique addresses do not depend on it.
//
// client-go's leaderelection imports the types of all of Kubernetes: this binary, which each speaker runs too, would
// grow from 45 to 60 MB. It also releases the Lease before its leader has stopped.
type Election struct {
	Namespace, Name string
	Identity        string // of this process; unique
}

// An elector is one process's view of the Lease.
type elector struct {
	Election
	client *rest.RESTClient
	log    *slog.Logger
	// seen is the last record that was read, and since is when this process first saw it unchanged,
	// by its own clock: clocks of two hosts are not compared.
	seen  *coordinationv1.Lease
	since time.Time
	// renewed is when the last successful request was sent: the API server may have renewed the
	// Lease that early.
	renewed time.Time
}

// run calls lead while this process holds the Lease, until ctx ends. The context of lead ends well
// before another process can get the Lease.
func (e *Election) run(ctx context.Context, client *rest.RESTClient, log *slog.Logger, lead func(context.Context)) {
	el := &elector{Election: *e, client: client, log: log}
	for el.acquire(ctx) {
		log.Info("leading", "identity", e.Identity)
		el.hold(ctx, lead)
		log.Info("stopped leading", "identity", e.Identity)
	}
}

// acquire returns true once this process holds the Lease, and false if ctx ends first.
func (e *elector) acquire(ctx context.Context) bool {
	err := wait.PollUntilContextCancel(ctx, renewPeriod, true, func(ctx context.Context) (bool, error) {
		taken, err := e.try(ctx)
		if err != nil && ctx.Err() == nil {
			e.log.Warn("Lease not acquired", "err", err)
		}
		return taken, nil
	})
	return err == nil && ctx.Err() == nil
}

// hold leads and renews, until ctx ends or the Lease is lost. It returns after lead has returned.
func (e *elector) hold(ctx context.Context, lead func(context.Context)) {
	leading, stop := context.WithCancel(ctx)
	var leader sync.WaitGroup
	leader.Go(func() { lead(leading) })
	e.renew(ctx)
	stop()
	leader.Wait()
	if ctx.Err() != nil {
		e.release(context.WithoutCancel(ctx))
	}
}

// renew renews until ctx ends, another process has the Lease, or no renewal has succeeded for
// renewDeadline.
func (e *elector) renew(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, renewPeriod, false, func(ctx context.Context) (lost bool, _ error) {
		deadline := e.renewed.Add(renewDeadline)
		attempt, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		held, err := e.try(attempt)
		if lost = err != nil && !time.Now().Before(deadline); lost && ctx.Err() == nil {
			e.log.Warn("Lease not renewed", "err", err)
		}
		return lost || !held && err == nil, nil
	})
}

// try takes or renews the Lease, if possible now. A Lease that another process holds is no error.
func (e *elector) try(ctx context.Context) (held bool, err error) {
	old := &coordinationv1.Lease{}
	err = e.client.Get().Namespace(e.Namespace).Resource("leases").Name(e.Name).Do(ctx).Into(old)
	switch {
	case apierrors.IsNotFound(err):
		old = nil
	case err != nil:
		return false, fmt.Errorf("lease %s/%s: %w", e.Namespace, e.Name, err)
	}
	if old != nil && (e.seen == nil || e.seen.ResourceVersion != old.ResourceVersion || e.seen.UID != old.UID) {
		e.seen, e.since = old, time.Now()
	}
	if old != nil && !e.holds(old) && !e.expired(old) {
		return false, nil
	}
	now := time.Now()
	if err := e.write(ctx, e.record(old, now)); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return false, fmt.Errorf("lease %s/%s: %w", e.Namespace, e.Name, err)
	}
	e.renewed = now
	return true, nil
}

// holds reports whether this process holds the Lease.
func (e *elector) holds(l *coordinationv1.Lease) bool {
	return l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == e.Identity
}

// expired reports whether no process holds the Lease, or its holder has not renewed it for
// longer than the Lease's duration.
func (e *elector) expired(l *coordinationv1.Lease) bool {
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return true
	}
	d := leaseDuration
	if s := l.Spec.LeaseDurationSeconds; s != nil {
		d = time.Duration(*s) * time.Second
	}
	return time.Since(e.since) > d
}

// record returns the Lease with this process as its holder.
func (e *elector) record(old *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
	if old != nil {
		l = old.DeepCopy()
	}
	if !e.holds(l) {
		l.Spec.AcquireTime = new(metav1.NewMicroTime(now))
		n := int32(0)
		if l.Spec.LeaseTransitions != nil {
			n = *l.Spec.LeaseTransitions + 1
		}
		l.Spec.LeaseTransitions = &n
	}
	l.Spec.HolderIdentity = &e.Identity
	l.Spec.LeaseDurationSeconds = new(int32(leaseDuration / time.Second))
	l.Spec.RenewTime = new(metav1.NewMicroTime(now))
	return l
}

// write creates the Lease, or updates it at the version that was read.
func (e *elector) write(ctx context.Context, l *coordinationv1.Lease) error {
	if l.ResourceVersion == "" {
		return e.client.Post().Namespace(l.Namespace).Resource("leases").Body(l).Do(ctx).Error()
	}
	return e.client.Put().Namespace(l.Namespace).Resource("leases").Name(l.Name).Body(l).Do(ctx).Error()
}

// release gives up the Lease, so that the next leader need not wait until it expires.
func (e *elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewPeriod)
	defer cancel()
	l := &coordinationv1.Lease{}
	err := e.client.Get().Namespace(e.Namespace).Resource("leases").Name(e.Name).Do(ctx).Into(l)
	if err == nil && e.holds(l) {
		l.Spec.HolderIdentity = new("")
		l.Spec.LeaseDurationSeconds = new(int32(1))
		err = e.write(ctx, l)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		e.log.Warn("Lease not released", "err", err)
	}
}
