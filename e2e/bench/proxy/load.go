package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A trial holds the measurements of one program with all Services.
type trial struct {
	Program  string
	Loaded   time.Duration // from the start until all are in the kernel
	Writing  time.Duration // of that, computing and writing rules, from its metrics
	Changes  measure.Sample
	Accepted measure.Sample // of each change, until the API server has answered
	Usage    measure.Usage  // after the changes
	Kernel   int64          // bytes that the kernel holds for the rules
}

// runTrial runs a program from start to end. Its rules stay.
func (b *bench) runTrial(ctx context.Context, p *program, on *node) (t trial, err error) {
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
	t.Writing = time.Duration(m[p.writeTime] * float64(time.Second))
	b.log.Info("loaded", "program", p.name, "took", t.Loaded, "writing", t.Writing)
	if err := b.changes(ctx, r, &t); err != nil {
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

// writeRules runs a program until it has written all Services' rules on a node, and ends
// it.
func (b *bench) writeRules(ctx context.Context, p *program, on *node, nodeName string, services int) error {
	r, err := b.start(p, on, nodeName)
	if err != nil {
		return err
	}
	return errors.Join(r.awaitLoaded(ctx, services), r.kill())
}

// changeLimit bounds the wait for one change, changesLimit the time for all: a program that
// takes seconds for a change need not make a hundred.
const (
	changeLimit  = 10 * time.Minute
	changesLimit = time.Minute
	fewChanges   = 5
)

// changes repeatedly replaces one endpoint of a Service.
func (b *bench) changes(ctx context.Context, r *process, t *trial) error {
	began := time.Now()
	for i := range b.repeats {
		if i >= fewChanges && time.Since(began) > changesLimit {
			return nil
		}
		// The pause is longer than kube-proxy waits before it deletes old chains. The random part
		// avoids synchronisation with timers.
		if err := measure.Pause(ctx, b.calm+time.Duration(rand.Int64N(int64(b.calm)))); err != nil {
			return err
		}
		if err := b.change(ctx, r, t); err != nil {
			return err
		}
	}
	return nil
}

// change replaces an endpoint by a new one and back, so that traffic later finds the
// expected pods.
func (b *bench) change(ctx context.Context, r *process, t *trial) error {
	b.changed++
	n := b.changed * 7919 % b.services
	for _, first := range []netip.Addr{newPod(b.changed), pod(n, 0, b.endpoints)} {
		pods := podsOf(n, b.endpoints)
		pods[0] = first
		if err := b.changeTo(ctx, r, n, pods, t); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) changeTo(ctx context.Context, r *process, n int, pods []netip.Addr, t *trial) error {
	ctx, cancel := context.WithTimeout(ctx, changeLimit)
	defer cancel()
	awaitRules, err := r.watch(ctx, pods[0])
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.api.move(ctx, n, pods); err != nil {
		return err
	}
	accepted := time.Now()
	at, err := awaitRules(ctx)
	if err != nil {
		return err
	}
	t.Accepted = append(t.Accepted, accepted.Sub(began))
	t.Changes = append(t.Changes, at.Sub(began))
	return nil
}

// watch returns a function that waits until the rules lead to a pod, and returns when they
// did: the time of the kernel's notification or, if the kernel sends none, of the change in
// the program's metrics.
func (p *process) watch(ctx context.Context,
	pod netip.Addr) (awaitRules func(context.Context) (time.Time, error), err error) {
	if !p.noEvents {
		watch, err := measure.WatchTable(p.on.Namespace, pod.AsSlice())
		if err != nil {
			return nil, err
		}
		return watch.Await, nil
	}
	before, err := p.metrics(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (at time.Time, err error) {
		err = lab.Await(ctx, changeLimit, p.name, func() error {
			m, err := p.metrics(ctx)
			if at = time.Now(); err == nil && p.lastWrite(m) == p.lastWrite(before) {
				err = errors.New("it has not written since")
			}
			return err
		})
		return at, err
	}, nil
}

// loadOnlyEndpoints is how many endpoints each Service has that is only loaded: kube-proxy's time grows with them.
const loadOnlyEndpoints = 1

// A loadOnly is what the programs of nftables take with more Services, without traffic.
type loadOnly struct {
	Services int
	Trials   []trial
}

// nftablesPrograms returns the programs whose changes the kernel reports.
func nftablesPrograms() []*program {
	return slices.DeleteFunc(programs(), func(p *program) bool { return p.noEvents })
}

// measureLoadOnly has a control plane of its own, so that the Services that other nodes forward stay as they are.
func (b *bench) measureLoadOnly(ctx context.Context) (l loadOnly, err error) {
	o := &bench{world: b.world, options: b.options, tools: b.tools, log: b.log}
	o.services, o.endpoints = b.loadServices, loadOnlyEndpoints
	l.Services = o.services
	b.log.Info("control plane", "services", o.services)
	if err := o.startControl(ctx, filepath.Join(b.dir, "load-only")); err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, o.control.Stop()) }()
	if err := o.api.fill(ctx, 0, o.services, o.endpoints); err != nil {
		return l, fmt.Errorf("fill: %w", err)
	}
	for _, p := range nftablesPrograms() {
		n, err := o.node(ctx, fmt.Sprint("node", len(o.nodes)+1))
		if err != nil {
			return l, err
		}
		t, err := o.runTrial(ctx, p, n)
		if err != nil {
			return l, fmt.Errorf("%s: %w", p.name, err)
		}
		l.Trials = append(l.Trials, t)
	}
	return l, nil
}
