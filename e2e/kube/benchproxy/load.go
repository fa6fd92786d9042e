package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

// A trial is what a program did with all Services.
type trial struct {
	Program string
	Loaded  time.Duration // from its start until all are in the kernel
	Writing time.Duration // of that, by its own account: computing and writing rules
	Changes measure.Sample
	Taken   measure.Sample // of each change, until the API server has answered
	Usage   measure.Usage  // after the changes
	Kernel  int64          // bytes that the kernel holds for its rules
}

// try runs a program from its start to its end. What it wrote stays.
func (b *bench) try(ctx context.Context, p *program, on *node) (t trial, err error) {
	t.Program = p.name
	r, err := b.start(p, on, home)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, r.kill()) }()
	if err := r.awaitLoaded(ctx, b.services); err != nil {
		return t, err
	}
	t.Loaded = time.Since(r.began)
	m, err := r.metrics(ctx)
	if err != nil {
		return t, err
	}
	t.Writing = time.Duration(m[p.writing] * float64(time.Second))
	b.log.Info("loaded", "program", p.name, "took", t.Loaded, "writing", t.Writing)
	if err := b.changes(ctx, on, &t); err != nil {
		return t, fmt.Errorf("an endpoint changes: %w", err)
	}
	if t.Usage, err = measure.UsageOf(p.name, r.cmd.Process.Pid); err != nil {
		return t, err
	}
	if err := r.kill(); err != nil {
		return t, err
	}
	t.Kernel, err = r.group.kernel()
	b.log.Info("tried", "program", p.name, "changes", t.Changes.String(), "rss", t.Usage.RSS, "kernel", t.Kernel)
	return t, err
}

// leave has a program write all Services' rules on a node, and ends it.
func (b *bench) leave(ctx context.Context, p *program, on *node, nodeName string, services int) error {
	r, err := b.start(p, on, nodeName)
	if err != nil {
		return err
	}
	return errors.Join(r.awaitLoaded(ctx, services), r.kill())
}

// changeLimit bounds the wait for one change, and changesLimit the time for all: a
// program that needs seconds for one is seen to need them without a hundred.
const (
	changeLimit  = 2 * time.Minute
	changesLimit = time.Minute
	fewChanges   = 5
)

// changes replaces one endpoint of some Service, again and again.
func (b *bench) changes(ctx context.Context, on *node, t *trial) error {
	began := time.Now()
	for i := range b.repeats {
		if i >= fewChanges && time.Since(began) > changesLimit {
			return nil
		}
		// Longer than kube-proxy waits before it deletes old chains, and never in
		// step with anybody's timer.
		if err := pause(ctx, b.calm+time.Duration(rand.Int64N(int64(b.calm)))); err != nil {
			return err
		}
		if err := b.change(ctx, on, t); err != nil {
			return err
		}
	}
	return nil
}

// pause waits for a time that is part of what is measured.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *bench) change(ctx context.Context, on *node, t *trial) error {
	ctx, cancel := context.WithTimeout(ctx, changeLimit)
	defer cancel()
	b.changed++
	n := b.changed * 7919 % b.services
	pods := podsOf(n, b.endpoints)
	pods[0] = newcomer(b.changed)
	eyes, err := measure.LookOut(on.Namespace, pods[0].AsSlice())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.api.move(ctx, n, pods); err != nil {
		return err
	}
	taken := time.Now()
	at, err := eyes.Await(ctx)
	if err != nil {
		return err
	}
	t.Taken = append(t.Taken, taken.Sub(began))
	t.Changes = append(t.Changes, at.Sub(began))
	// As it was, so that traffic finds the pods that it expects.
	pods[0] = pod(n, 0, b.endpoints)
	return b.api.move(ctx, n, pods)
}
