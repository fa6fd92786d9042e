package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// services are the workload's Services. They differ in externalTrafficPolicy: Local and
// Cluster.
var services = []string{"local", "anywhere"}

// A loadTest is an operation on the cluster while clients use both Services.
type loadTest struct {
	*testing.T
	*cluster
	began time.Time
	vips  map[string]netip.Addr
	// tolerateUntil is the end of the time in which requests may be lost; zero if none may.
	tolerateUntil time.Time
}

// underLoad runs do while new connections are opened to both Services, and for a second
// before and after. No request may be lost, and no address may be announced without being
// forwarded.
func underLoad(t *testing.T, do func(context.Context, *loadTest)) {
	t.Helper()
	c := kubelets(t)
	r := &loadTest{T: t, cluster: c, vips: map[string]netip.Addr{}}
	for _, name := range services {
		var err error
		r.vips[name], err = c.address(t.Context(), name)
		must(t, err)
		must(t, c.Router.AwaitNextHops(t.Context(), limit, r.vips[name], nodes...))
	}
	must(t, r.deleteConntrack())
	r.began = time.Now()
	loads := map[string]*lab.Load{}
	for name, vip := range r.vips {
		loads[name] = c.Client.StartLoad(t.Context(), netip.AddrPortFrom(vip, 80))
	}
	// This also runs after t.Fatal in do.
	defer func() {
		r.pauseSecond()
		for _, name := range services {
			report, err := c.NoneLost(r.withoutTolerated(name, loads[name].Stop()), r.vips[name], r.began)
			t.Logf("%-8s %s", name, report)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if v := c.Observer.Verdict(c.SendDelay()); len(v.Violations) > 0 {
			t.Errorf("the promise was broken:\n%s", v)
		}
	}()
	r.pauseSecond()
	do(t.Context(), r)
}

// deleteConntrack makes the nodes forget earlier clients. One host stands for many clients
// and reuses a port after two minutes, in the next test. If the router moved the port's
// earlier connection, a node keeps its entry for a day and would send the port to a pod
// that may no longer exist.
func (r *loadTest) deleteConntrack() (err error) {
	for _, n := range nodes {
		for _, vip := range r.vips {
			err = errors.Join(err, r.Namespace(n).DeleteConntrack(vip))
		}
	}
	return err
}

// withoutTolerated removes inevitable losses from a report.
func (r *loadTest) withoutTolerated(name string, report lab.Report) lab.Report {
	var rest []lab.Loss
	for _, l := range report.Lost {
		if !l.Begin.Before(r.tolerateUntil) {
			rest = append(rest, l)
		}
	}
	if n := len(report.Lost) - len(rest); n > 0 {
		r.Logf("%-8s %d lost that began before %+.2f s", name, n, r.tolerateUntil.Sub(r.began).Seconds())
	}
	report.Lost = rest
	return report
}

// pauseSecond waits for a second before and after the operation.
func (r *loadTest) pauseSecond() {
	select {
	case <-time.After(time.Second):
	case <-r.Context().Done():
	}
}

// kubectl runs an operator's command, which must succeed.
func (r *loadTest) kubectl(args ...string) string {
	r.Helper()
	out, err := r.cluster.kubectl(r.Context(), args...)
	must(r.T, err)
	return out
}

// route describes the changes of the route to a Service's address since the test began.
func (r *loadTest) route(name string) string {
	changes := r.Observer.RouteChanges(r.vips[name], r.began, time.Now())
	return fmt.Sprintf("%s: %d changes of the route", name, len(changes))
}

// since returns the time since from, rounded for the report.
func since(from time.Time) time.Duration { return time.Since(from).Round(10 * time.Millisecond) }
