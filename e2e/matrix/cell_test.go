package matrix

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/e2e/observer"
)

const (
	// connections is the number of long-lived ones in each cell.
	connections = 60
	// before is how long the load runs before the disturbance.
	before = 700 * time.Millisecond
)

// A cell is one feature under one disturbance.
type cell struct {
	*testbed
	disturbance
	paths    *observer.Paths
	flows    *lab.Flows
	load     *lab.Load
	began    time.Time // the cell
	outages  int       // deletions of tables before it
	begun    time.Time // the disturbance
	awayFrom time.Time // zero: nothing was away
	awayTo   time.Time
	done     time.Time // the disturbance has ended
	stalled  time.Duration
}

// run runs the cell. The error says that it could not be measured, broken which promises were
// not kept.
func (c *cell) run(ctx context.Context, p promise) (r result, broken []string, err error) {
	if err := c.awaitWhole(ctx); err != nil {
		return r, nil, fmt.Errorf("before it: %w", err)
	}
	if c.prepare != nil {
		if err := c.prepare(ctx, c); err != nil {
			return r, nil, fmt.Errorf("prepare: %w", err)
		}
	}
	c.outages = c.Observer.Verdict(c.SendDelay()).Outages
	c.began = time.Now()
	stop, err := c.begin(ctx)
	if err != nil {
		return r, nil, err
	}
	err = c.disturb(ctx)
	back := time.Since(c.done)
	if err == nil {
		err = errors.Join(c.flows.AwaitLines(ctx, 4), pause(ctx, before))
	}
	wrong, stopped := stop()
	if err = errors.Join(err, stopped); err != nil {
		return r, wrong, err
	}
	r, broken, err = c.measure(p)
	r.Back = back
	return r, append(append(broken, p.judge(r, *slack)...), wrong...), err
}

// begin starts load and recordings. stop ends them, but for the connections.
func (c *cell) begin(ctx context.Context) (stop func() ([]string, error), err error) {
	if c.paths, err = c.WatchPaths(c.vip); err != nil {
		return nil, err
	}
	var claims *observer.Claims
	open := c.client.OpenFlows
	start := c.client.StartLoad
	port := uint16(80)
	if c.udp {
		open, start, port = c.client.OpenUDPFlows, c.client.StartUDPLoad, 7
	}
	if c.flows, err = open(ctx, connections, c.to(7)); err != nil {
		return nil, errors.Join(err, c.paths.Close())
	}
	if c.layer2 {
		if claims, err = c.WatchClaims(c.vip); err != nil {
			return nil, errors.Join(err, c.flows.Close(), c.paths.Close())
		}
	}
	watched := func() []string { return nil }
	if c.watch != nil {
		if watched, err = c.watch(ctx, c); err != nil {
			return nil, errors.Join(err, c.flows.Close(), c.paths.Close())
		}
	}
	c.load = start(ctx, c.to(port))
	stop = func() ([]string, error) {
		c.load.Stop()
		wrong := watched()
		if claims != nil {
			claims.Close()
		}
		return wrong, errors.Join(c.paths.Close(), c.flows.Close())
	}
	return stop, nil
}

// disturb causes the disturbance and waits until everything is as before.
func (c *cell) disturb(ctx context.Context) error {
	err := c.load.AwaitAnswered(ctx, time.Now())
	if err == nil {
		err = pause(ctx, before)
	}
	if err == nil {
		c.begun = time.Now()
		err = c.do(ctx, c)
	}
	if c.done.IsZero() {
		c.done = time.Now()
	}
	if err == nil {
		err = c.awaitWhole(ctx)
	}
	return err
}

func (c *cell) to(port uint16) netip.AddrPort { return netip.AddrPortFrom(c.vip, port) }

func (c *cell) network() string {
	if c.udp {
		return "udp"
	}
	return "tcp"
}

// measure counts what was lost.
func (c *cell) measure(p promise) (r result, broken []string, err error) {
	report := c.load.Stop()
	if want := max(lab.Rate, int(lab.Rate*time.Since(c.begun).Seconds()/2)); report.Sent < want {
		return r, nil, fmt.Errorf("only %d requests: want at least %d, half of the load", report.Sent, want)
	}
	if c.through(c.node) == 0 && c.disturbance.name != "node-added" {
		return r, nil, fmt.Errorf("no connection went through %s: want some", c.node)
	}
	var requests, ended []loss
	for _, l := range report.Lost {
		causes := c.causes(l.From.Port(), c.loadPort(), l.Begin, l.End)
		r.LostAt = append(r.LostAt, int(l.Begin.Sub(c.begun).Milliseconds()))
		requests = append(requests, loss{fmt.Sprintf(
			"a request was lost: began %+.3f s, ended %+.3f s (away %s), through %v: %v", c.since(l.Begin),
			c.since(l.End), c.awayText(), c.paths.Of(c.network(), l.From.Port(), c.loadPort()), l.Err), causes})
	}
	for _, f := range c.flows.All {
		if err := f.Err(); err != nil {
			causes := c.causes(f.From.Port(), 7, c.began, f.Ended())
			ended = append(ended, loss{fmt.Sprintf("a connection to %s was lost: %+.3f s, through %v: %v", f.Pod,
				c.since(f.Ended()), c.paths.Of(c.network(), f.From.Port(), 7), err), causes})
		}
	}
	r.Slowest = report.Longest
	if !c.awayFrom.IsZero() {
		r.Away = c.awayTo.Sub(c.awayFrom)
	}
	r.Flaps = c.changes()
	var brokenFlows []string
	r.Requests, broken = tally(report.Sent, requests, p.requests)
	r.Connections, brokenFlows = tally(len(c.flows.All), ended, p.connections)
	return r, slices.Concat(c.violations(), broken, brokenFlows), nil
}

func (c *cell) loadPort() uint16 {
	if c.udp {
		return 7
	}
	return 80
}

// through counts the connections that went through a node.
func (c *cell) through(node string) (n int) {
	for _, f := range c.flows.All {
		if slices.Contains(c.paths.Of(c.network(), f.From.Port(), 7), node) {
			n++
		}
	}
	return n
}

// since returns the seconds since the cell began.
func (c *cell) since(at time.Time) float64 { return at.Sub(c.began).Seconds() }

func (c *cell) awayText() string {
	if c.awayFrom.IsZero() {
		return "never"
	}
	return fmt.Sprintf("from %+.3f to %+.3f s", c.since(c.awayFrom), c.since(c.awayTo))
}

// causes returns what explains the loss of a flow in that time.
func (c *cell) causes(client, server uint16, begin, end time.Time) (all cause) {
	nodes := c.paths.Of(c.network(), client, server)
	if len(nodes) > 1 {
		all |= moved
	}
	if !c.awayFrom.IsZero() && begin.Before(c.awayTo) && end.After(c.awayFrom) &&
		(c.everywhere() || slices.Contains(nodes, c.node)) {
		all |= away
	}
	return all
}

// everywhere reports whether what is away concerns flows through other nodes, too: the router's
// absence does, and so does a node's with the policy Cluster, because of its pods.
func (c *cell) everywhere() bool {
	return c.service.Policy != local || c.disturbance.name == "router-restarted"
}

// changes counts the changes of the address's route, or of its owner, since the cell began.
func (c *cell) changes() int {
	if c.layer2 {
		return max(0, len(c.paths.Order())-1)
	}
	return len(c.Observer.RouteChanges(c.vip, c.began, time.Now()))
}

// violations returns the violations of the update order since the cell began. While a table is
// missing nothing is promised, so it must be there unless the cell deletes it.
func (c *cell) violations() (all []string) {
	verdict := c.Observer.Verdict(c.SendDelay())
	for _, v := range verdict.Violations {
		if !v.At.Before(c.began) {
			all = append(all, v.String())
		}
	}
	if n := verdict.Outages - c.outages; n > 0 && c.disturbance.name != "table-flushed" {
		all = append(all, fmt.Sprintf("%d times a node's table was missing", n))
	}
	return all
}

// describe returns the result as a line.
func (r result) describe() string {
	return fmt.Sprintf("%d of %d requests lost (%d moved, %d away), %d of %d connections (%d moved, %d away), "+
		"slowest answer %s, %d changes of the route or owner, away for %s, as before after %s",
		r.Requests.Lost, r.Requests.All, r.Requests.Moved, r.Requests.Away, r.Connections.Lost, r.Connections.All,
		r.Connections.Moved, r.Connections.Away, round(r.Slowest), r.Flaps, round(r.Away), round(r.Back))
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// few shortens a list of broken promises.
func few(list []string) string {
	const most = 6
	if len(list) > most {
		list = append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", len(list)-most))
	}
	return strings.Join(list, "\n")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
