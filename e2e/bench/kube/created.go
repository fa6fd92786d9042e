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
	Update     measure.Sample // the first announcement has reached the router
	Route      measure.Sample // the route is in the router's kernel
	Answer     measure.Sample // a client behind the router has the first answer
	FRR        measure.Sample // from the UPDATE to the route in the kernel
	WithoutFRR measure.Sample // the first answer, without that time
	Proxy      measure.Sample // the Service is in the kernel of kube-proxy's node
}

// create measures repeatedly, and waits for kube-proxy before and after each event.
func (b *bench) create(ctx context.Context, repeats int) (c created, err error) {
	for range repeats {
		if err := b.quiet(ctx); err != nil {
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
	return b.awaitRoutes(ctx, b.background, 1)
}

// awaitRoutes waits until the router has the given number of host routes, each to the given
// number of nodes.
func (b *bench) awaitRoutes(ctx context.Context, want, nodes int) error {
	return lab.Await(ctx, eventLimit, "routes on the router", func() error {
		out, err := b.Router.Run(ctx, "ip", "-4", "-oneline", "route", "show", "root", prefix)
		if routes, hops := hostRoutes(out); err == nil && (routes != want || hops != want*nodes) {
			err = fmt.Errorf("%d host routes with %d next hops: want %d with %d", routes, hops, want, want*nodes)
		}
		return err
	})
}

// hostRoutes counts the routes that are not aggregates, and their next hops, in the output of
// ip -oneline route.
func hostRoutes(out string) (routes, hops int) {
	for l := range strings.Lines(out) {
		if !strings.HasPrefix(l, prefix+" ") {
			routes, hops = routes+1, hops+strings.Count(l, " via ")
		}
	}
	return routes, hops
}

// newName returns the name of the n-th measured Service.
func newName(n int) string { return fmt.Sprintf("new-%05d", n) }

// createOne creates a Service, waits until a client has an answer and kube-proxy has its rules, and
// deletes it.
func (b *bench) createOne(ctx context.Context, c *created) (err error) {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	b.created++
	name := newName(b.created)
	watch, err := measure.WatchTable(b.Namespace(proxyNode), chainOf(name))
	if err != nil {
		return err
	}
	if err := b.api.createSlice(ctx, newSlice(name, realPod("p11"))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.deleteService(context.WithoutCancel(ctx), name)) }()
	began := time.Now()
	if _, err := b.api.createService(ctx, newService(name)); err != nil {
		return err
	}
	accepted := time.Now()
	is, vip, answered, err := b.firstAnswer(ctx, name)
	if err != nil {
		return err
	}
	rules, update, route, err := b.observed(ctx, vip, began)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		to *measure.Sample
		at time.Time
	}{
		{&c.Accepted, accepted}, {&c.Address, is.At}, {&c.Rules, rules}, {&c.Update, update}, {&c.Route, route},
		{&c.Answer, answered},
	} {
		*s.to = append(*s.to, s.at.Sub(began))
	}
	c.FRR = append(c.FRR, route.Sub(update))
	c.WithoutFRR = append(c.WithoutFRR, answered.Sub(began)-route.Sub(update))
	proxied, err := watch.Await(ctx)
	c.Proxy = append(c.Proxy, proxied.Sub(began))
	return err
}

// observed returns when Fanfare's node had the rules of an address, when the first node had
// announced it to the router, and when the router had its first route.
func (b *bench) observed(ctx context.Context, vip netip.Addr,
	began time.Time) (rules, update, route time.Time, err error) {
	err = lab.Await(ctx, eventLimit, "the observer's events of "+vip.String(), func() error {
		rules, update, route = b.Observer.RuleSince(fanfareNode, vip, began), b.firstAnnounced(vip, began),
			b.Observer.Routed(vip, began)
		if rules.IsZero() || update.IsZero() || route.IsZero() {
			return fmt.Errorf("rules %v, UPDATE %v, route %v", rules, update, route)
		}
		return nil
	})
	return rules, update, route, err
}

// firstAnnounced returns when the first node announced an address after a time; zero if none
// has.
func (b *bench) firstAnnounced(vip netip.Addr, since time.Time) (first time.Time) {
	for _, node := range lab.NodeNames {
		if at := b.Observer.Announced(node, vip, since); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// firstAnswer waits until a Service has an address and a client an answer from it, and
// returns the address and the time of the answer.
func (b *bench) firstAnswer(ctx context.Context,
	name string) (is measure.Assigned, vip netip.Addr, answered time.Time, err error) {
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
