package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// changesPerSecond is how many endpoints change in a second of that phase.
const changesPerSecond = 20

// A phase is what happened, and what it cost.
type phase struct {
	Name  string
	Took  time.Duration
	CPU   time.Duration // of kube-apiserver
	Sent  float64       // watch events that the API server sent, to all its clients
	Count Counts        // of the measured clients
}

// measure goes through all phases. Without clients there is nothing to start or to kill.
func (b *bench) measure(ctx context.Context, k kind) (all []phase, err error) {
	steps := []struct {
		name    string
		clients bool
		do      func(context.Context) error
	}{
		{"start", true, b.startAll},
		{"idle", false, b.rest},
		{"endpoint changes", false, b.changeEndpoints},
		{"API server restarted", true, b.restartAPIServer},
		{"a node dies", true, func(ctx context.Context) error { return b.kill(ctx, 1) }},
		{"a tenth dies", true, func(ctx context.Context) error { return b.kill(ctx, max(1, b.Nodes/10)) }},
		{"Services created", false, b.createMore},
		{"rolling upgrade", true, b.upgrade},
	}
	for _, s := range steps {
		if s.clients && k == none {
			continue
		}
		if s.name == "idle" {
			// What the start has caused ends: SpeakerStatuses are written some seconds later.
			if err := b.rest(ctx); err != nil {
				return all, err
			}
		}
		p, err := b.phase(ctx, s.name, s.do)
		if err != nil {
			return all, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// phase measures one phase. The counters of an API server that restarts begin at zero.
func (b *bench) phase(ctx context.Context, name string, do func(context.Context) error) (p phase, err error) {
	p.Name = name
	usage, err := measure.UsageOf("kube-apiserver", b.cluster.APIServer.PID())
	if err != nil {
		return p, err
	}
	sent, err := b.sent(ctx)
	if err != nil {
		return p, err
	}
	count, pid, began := b.traffic.counts(), b.cluster.APIServer.PID(), time.Now()
	if err := do(ctx); err != nil {
		return p, err
	}
	p.Took, p.Count = time.Since(began), b.traffic.counts().minus(count)
	after, err := measure.UsageOf("kube-apiserver", b.cluster.APIServer.PID())
	if err != nil {
		return p, err
	}
	p.Sent, err = b.sent(ctx)
	p.CPU = after.CPU
	if b.cluster.APIServer.PID() == pid {
		p.CPU, p.Sent = p.CPU-usage.CPU, p.Sent-sent
	}
	return p, err
}

// sent is how many watch events the API server has sent.
func (b *bench) sent(ctx context.Context) (total float64, err error) {
	text, err := b.core.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("apiserver_watch_events_total{")) {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(string(line[bytes.LastIndexByte(line, ' ')+1:]), &value); err != nil {
			return 0, fmt.Errorf("metric %s: %w", line, err)
		}
		total += value
	}
	return total, nil
}

func (b *bench) startAll(ctx context.Context) error {
	for i := range b.Nodes {
		b.fleet.start(ctx, i)
	}
	return b.fleet.await(ctx, b.created)
}

// rest lets the phase's duration pass.
func (b *bench) rest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.duration):
		return nil
	}
}

func (b *bench) changeEndpoints(ctx context.Context) error {
	limit := rate.NewLimiter(changesPerSecond, 1)
	for until := time.Now().Add(b.duration); time.Now().Before(until); {
		if err := errors.Join(limit.Wait(ctx), b.changeEndpoint(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// restartAPIServer kills the API server. All clients must see a Service that is created afterwards.
func (b *bench) restartAPIServer(ctx context.Context) error {
	b.cluster.APIServer.Kill()
	if err := b.cluster.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := b.createServices(ctx, 1); err != nil {
		return err
	}
	return b.fleet.await(ctx, b.created)
}

// kill ends n clients as nodes that lose their power.
func (b *bench) kill(ctx context.Context, n int) error {
	for i := range b.Nodes {
		if b.fleet.all[i] != nil && n > 0 {
			n--
			if err := b.fleet.end(i, false); err != nil {
				return err
			}
		}
	}
	return b.rest(ctx)
}

func (b *bench) createMore(ctx context.Context) error {
	if err := b.createServices(ctx, b.create); err != nil {
		return err
	}
	if err := b.awaitAssigned(ctx); err != nil {
		return err
	}
	return b.fleet.await(ctx, b.created)
}

// upgrade replaces one client after the other.
func (b *bench) upgrade(ctx context.Context) error {
	for i := range b.Nodes {
		if b.fleet.all[i] == nil {
			continue
		}
		if err := b.fleet.end(i, true); err != nil {
			return err
		}
		b.fleet.start(ctx, i)
		if err := b.fleet.await(ctx, b.created); err != nil {
			return err
		}
	}
	return nil
}
