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

// services are the ways to the workload. They differ in their
// externalTrafficPolicy, Local and Cluster.
var services = []string{"local", "anywhere"}

// A trial is something that is done to the cluster while clients use both
// Services.
type trial struct {
	*testing.T
	*cluster
	began time.Time
	vips  map[string]netip.Addr
	// lossless is when the time ended in which requests may be lost; zero if
	// there was none.
	lossless time.Time
}

// underLoad does something while new connections are opened to both Services, and
// for a second before and after it. None may be lost, and no address may be
// announced that is not forwarded.
func underLoad(t *testing.T, do func(context.Context, *trial)) {
	t.Helper()
	c := kubelets(t)
	r := &trial{T: t, cluster: c, vips: map[string]netip.Addr{}}
	for _, name := range services {
		var err error
		r.vips[name], err = c.address(t.Context(), name)
		must(t, err)
		must(t, c.Router.AwaitNextHops(t.Context(), limit, r.vips[name], nodes...))
	}
	must(t, r.fresh())
	r.began = time.Now()
	loads := map[string]*lab.Load{}
	for name, vip := range r.vips {
		loads[name] = c.Client.StartLoad(t.Context(), netip.AddrPortFrom(vip, 80))
	}
	// Also when do ends by t.Fatal.
	defer func() {
		r.moment()
		for _, name := range services {
			told, err := c.NoneLost(r.excuse(name, loads[name].Stop()), r.vips[name], r.began)
			t.Logf("%-8s %s", name, told)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if v := c.Observer.Verdict(c.SendDelay()); len(v.Violations) > 0 {
			t.Errorf("the promise was broken:\n%s", v)
		}
	}()
	r.moment()
	do(t.Context(), r)
}

// fresh makes clients of a trial meet nodes that do not remember them. One host
// stands for many here, and uses a port again after two minutes: in the next trial. If a
// router has cut the connection that had it, a node still has the entry, for a day,
// and sends the port to that pod, which may be gone by then.
func (r *trial) fresh() (err error) {
	for _, n := range nodes {
		for _, vip := range r.vips {
			err = errors.Join(err, r.Namespace(n).DeleteConntrack(vip))
		}
	}
	return err
}

// excuse takes out of a report what was lost while that was inevitable.
func (r *trial) excuse(name string, report lab.Report) lab.Report {
	var rest []lab.Loss
	for _, l := range report.Lost {
		if !l.Begin.Before(r.lossless) {
			rest = append(rest, l)
		}
	}
	if n := len(report.Lost) - len(rest); n > 0 {
		r.Logf("%-8s %d lost that were begun before %+.2f s", name, n, r.lossless.Sub(r.began).Seconds())
	}
	report.Lost = rest
	return report
}

// moment is the second before and after, in which things are as they should be.
func (r *trial) moment() {
	select {
	case <-time.After(time.Second):
	case <-r.Context().Done():
	}
}

// kubectl is what an operator types. It must succeed.
func (r *trial) kubectl(args ...string) string {
	r.Helper()
	out, err := r.cluster.kubectl(r.Context(), args...)
	must(r.T, err)
	return out
}

// route says how the route to a Service's address changed since the trial began.
func (r *trial) route(name string) string {
	changes := r.Observer.RouteChanges(r.vips[name], r.began, time.Now())
	return fmt.Sprintf("%s: %d changes of the route", name, len(changes))
}

// since is a time in the trial, as reported.
func since(from time.Time) time.Duration { return time.Since(from).Round(10 * time.Millisecond) }
