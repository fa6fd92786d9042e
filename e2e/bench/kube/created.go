package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A created holds the measurements of creating a Service whose pod runs and whose
// EndpointSlice exists. Times start at the request, except FRR's part, which starts at the
// UPDATE's arrival at the router and ends with the route in its kernel.
type created struct {
	Accepted   measure.Sample // the API server has answered the request
	Address    measure.Sample // a client that watches sees the address
	Rules      measure.Sample // the address is in the kernel of Fanfare's node
	Update     measure.Sample // the announcement has reached the router
	Route      measure.Sample // the route is in the router's kernel
	Answer     measure.Sample // a client behind the router has the first answer
	FRR        measure.Sample // from the UPDATE to the route in the kernel
	WithoutFRR measure.Sample // the first answer, without that time
	Proxy      measure.Sample // the Service is in the kernel of kube-proxy's node
}

func (b *bench) create(ctx context.Context, repeats int) (c created, err error) {
	for range repeats {
		if err := b.awaitQuiet(ctx); err != nil {
			return c, err
		}
		if err := b.createOne(ctx, &c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// createWithBIRD measures with a router that does not delay routes.
func (b *bench) createWithBIRD(ctx context.Context, repeats int) (c created, err error) {
	if err := b.replaceRouter(ctx, lab.BIRD); err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, b.replaceRouter(context.WithoutCancel(ctx), lab.FRR)) }()
	return b.create(ctx, repeats)
}

// replaceRouter replaces the router's software and waits until the router has all routes
// again.
func (b *bench) replaceRouter(ctx context.Context, software string) error {
	if err := b.Router.Replace(ctx, software); err != nil {
		return err
	}
	if err := b.AwaitSessions(ctx, fanfareNode); err != nil {
		return err
	}
	return b.awaitRoutes(ctx, b.background)
}

// awaitRoutes waits until the router has the given number of host routes.
func (b *bench) awaitRoutes(ctx context.Context, want int) error {
	return lab.Await(ctx, eventLimit, "routes on the router", func() error {
		out, err := b.Router.Run(ctx, "ip", "-4", "route", "show", "root", prefix)
		aggregates := strings.Count("\n"+out, "\n"+prefix+" ")
		if n := strings.Count(out, "\n") - aggregates; err == nil && n != want {
			err = fmt.Errorf("%d host routes: want %d", n, want)
		}
		return err
	})
}

func (b *bench) createOne(ctx context.Context, c *created) (err error) {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	b.created++
	name := fmt.Sprintf("new-%05d", b.created)
	if err := b.api.createSlice(ctx, newSlice(name, realPod("p11"))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.deleteService(context.WithoutCancel(ctx), name)) }()
	proxyWatch, err := measure.WatchTable(b.Namespace(proxyNode), chainOf(name))
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := b.api.createService(ctx, newService(name)); err != nil {
		return err
	}
	accepted := time.Now()
	is, vip, answered, err := b.firstAnswer(ctx, name)
	if err != nil {
		return err
	}
	proxied, err := proxyWatch.Await(ctx)
	if err != nil {
		return err
	}
	var rules, update, route time.Time
	err = lab.Await(ctx, eventLimit, "the observer's events of "+name, func() error {
		rules, update, route = b.Observer.RuleSince(fanfareNode, vip, began), b.Observer.Announced(fanfareNode, vip, began), b.Observer.RouteVia(vip, began, fanfareNode)
		if rules.IsZero() || update.IsZero() || route.IsZero() {
			return fmt.Errorf("rules %v, UPDATE %v, route %v", rules, update, route)
		}
		return nil
	})
	for _, s := range []struct {
		to *measure.Sample
		at time.Time
	}{
		{&c.Accepted, accepted}, {&c.Address, is.At}, {&c.Rules, rules}, {&c.Update, update}, {&c.Route, route}, {&c.Answer, answered}, {&c.Proxy, proxied},
	} {
		*s.to = append(*s.to, s.at.Sub(began))
	}
	c.FRR = append(c.FRR, route.Sub(update))
	c.WithoutFRR = append(c.WithoutFRR, answered.Sub(began)-route.Sub(update))
	return err
}

// firstAnswer waits until a Service has an address and a client an answer from it, and
// returns the address and the time of the answer.
func (b *bench) firstAnswer(ctx context.Context, name string) (is measure.Assigned, vip netip.Addr, answered time.Time, err error) {
	if is, err = b.seen.Of(ctx, name); err != nil {
		return is, vip, answered, err
	}
	if vip, err = netip.ParseAddr(is.Addr); err != nil {
		return is, vip, answered, err
	}
	answered, err = b.Client.FirstAnswer(ctx, netip.AddrPortFrom(vip, port))
	return is, vip, answered, err
}

// deleteService deletes a Service and waits until its route is withdrawn.
func (b *bench) deleteService(ctx context.Context, name string) error {
	is, err := b.seen.Of(ctx, name)
	if err != nil {
		return err
	}
	vip, err := netip.ParseAddr(is.Addr)
	if err != nil {
		return err
	}
	if err := errors.Join(b.api.deleteService(ctx, name), b.api.deleteSlice(ctx, name+"-1")); err != nil {
		return err
	}
	return b.Router.AwaitNextHops(ctx, eventLimit, vip)
}
