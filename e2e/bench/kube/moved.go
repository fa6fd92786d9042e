package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A moved holds the measurements of replacing the only endpoint of a Service by another.
// Times start at the request that changes the EndpointSlice.
type moved struct {
	Calm, Churn change
	// CPU is the usage during the churn.
	CPU []measure.Share
}

// A change holds the times to each effect of one event.
type change struct {
	Accepted measure.Sample // the API server has answered the request
	Rules    measure.Sample // in the kernel of Fanfare's node
	Answer   measure.Sample // a client behind the router has an answer of the new pod
	Proxy    measure.Sample // in the kernel of kube-proxy's node
}

// churnRate is the number of other Services per second whose endpoints change.
const churnRate = 20

// calmTime is the pause before an event: longer than kube-proxy waits between two changes
// of its rules, and than it takes to delete old chains.
const calmTime = 1500 * time.Millisecond

const moving = "moving" // the name of the Service

func (b *bench) move(ctx context.Context, repeats int) (m moved, err error) {
	if err := b.api.createSlice(ctx, newSlice(moving, realPod(targets[1]))); err != nil {
		return m, err
	}
	if _, err := b.api.createService(ctx, newService(moving)); err != nil {
		return m, err
	}
	defer b.deleteMoved(&err)
	is, err := b.seen.Of(ctx, moving)
	if err != nil {
		return m, err
	}
	vip, err := netip.ParseAddr(is.Addr)
	if err != nil {
		return m, err
	}
	to := netip.AddrPortFrom(vip, port)
	if _, err := b.Client.FirstAnswer(ctx, to); err != nil {
		return m, err
	}
	if m.Calm, err = b.moves(ctx, to, repeats, calmTime); err != nil {
		return m, err
	}
	m.CPU, err = b.withChurn(ctx, func(ctx context.Context) error {
		m.Churn, err = b.moves(ctx, to, repeats, 0)
		return err
	})
	return m, err
}

func (b *bench) deleteMoved(err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventLimit)
	defer cancel()
	*err = errors.Join(*err, b.deleteService(ctx, moving))
	b.seen.Forget(moving)
}

// targets are the pods that the Service moves to in turn. It uses the second one before and
// after the measurement.
var targets = [2]string{"p12", "p11"}

// moves replaces the endpoint repeatedly. A random part of the pause avoids synchronisation
// with timers.
func (b *bench) moves(ctx context.Context, to netip.AddrPort, repeats int, rest time.Duration) (c change, err error) {
	for i := range repeats {
		if err := measure.Pause(ctx, rest+time.Duration(rand.Int64N(int64(time.Second)))); err != nil {
			return c, err
		}
		if err := b.moveOne(ctx, to, targets[i%2], &c); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (b *bench) moveOne(ctx context.Context, to netip.AddrPort, pod string, c *change) error {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	p := realPod(pod)
	fanfareWatch, err := measure.WatchTable(b.Namespace(fanfareNode), endpoint(p.addr))
	if err != nil {
		return err
	}
	// Its rule for a Service with one endpoint has the port in another expression than the address.
	proxyWatch, err := measure.WatchTable(b.Namespace(proxyNode), chainOf(moving), p.addr.AsSlice())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.api.updateSlice(ctx, newSlice(moving, p)); err != nil {
		return err
	}
	accepted := time.Now()
	answered, err := b.answerOf(ctx, to, pod)
	if err != nil {
		return err
	}
	ruled, err := fanfareWatch.Await(ctx)
	if err != nil {
		return err
	}
	proxied, err := proxyWatch.Await(ctx)
	if err != nil {
		return err
	}
	c.Accepted = append(c.Accepted, accepted.Sub(began))
	c.Rules = append(c.Rules, ruled.Sub(began))
	c.Answer = append(c.Answer, answered.Sub(began))
	c.Proxy = append(c.Proxy, proxied.Sub(began))
	return nil
}

// answerOf opens one connection after the other until the given pod answers.
func (b *bench) answerOf(ctx context.Context, to netip.AddrPort, pod string) (time.Time, error) {
	for {
		a, err := b.Client.Get(ctx, netip.AddrPort{}, to)
		switch {
		case err != nil:
			return time.Time{}, fmt.Errorf("a request was lost while the endpoint changed: %w", err)
		case a.Pod == pod:
			return time.Now(), nil
		}
	}
}

// withChurn changes endpoints of background Services while do runs, and returns the usage
// meanwhile.
func (b *bench) withChurn(ctx context.Context, do func(context.Context) error) ([]measure.Share, error) {
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.churn(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}()
	err = do(ctx)
	cancel(nil)
	<-done
	after, usageErr := b.usage()
	return measure.Shares(before, after, time.Since(began)), errors.Join(err, usageErr)
}

func (b *bench) churn(ctx context.Context) error {
	tick := time.NewTicker(time.Second / churnRate)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		b.churned++
		n := b.churned * 7919 % b.background
		if err := b.api.updateSlice(ctx, newSlice(backgroundName(n), backgroundPods(n, b.churned)...)); err != nil {
			return err
		}
	}
}
