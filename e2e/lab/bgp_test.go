package lab

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// serve creates a Service for the duration of a test.
func serve(t *testing.T, l *Lab, svc Service, nodes ...string) netip.Addr {
	t.Helper()
	s := &StepRun{Lab: l}
	vip, err := s.Serve(t.Context(), svc, nodes...)
	t.Cleanup(func() {
		var err error
		if s.Drop(context.WithoutCancel(t.Context()), &err, svc.Name, vip); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return vip
}

// expectNoLoss ends a load and checks that no request was lost.
func expectNoLoss(t *testing.T, l *Lab, load *Load, began time.Time) {
	t.Helper()
	report, err := l.NoneLost(load.Stop(), load.to.Addr(), began)
	t.Log(report)
	if err != nil {
		t.Error(err)
	}
}

func await(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The router removes a frozen speaker's routes when the hold time expires. The node's
// kernel forwards meanwhile.
func TestBGPFrozenSpeakerLosesRoutes(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "hold", Endpoints: At("p21", "p31")}, NodeNames...)
	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))
	await(t, l.Speaker("n1").Freeze())
	t.Cleanup(func() { await(t, l.AwaitSessions(context.WithoutCancel(ctx), "n1")) })
	t.Cleanup(func() { l.Speaker("n1").Resume() })
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n2", "n3"))
	t.Logf("frozen speaker: n1 was no longer a next hop after %s (hold time 3 s)",
		time.Since(began).Round(time.Millisecond))
	resumed := time.Now()
	await(t, l.Speaker("n1").Resume())
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))
	t.Logf("resumed: n1 was a next hop again after %s", time.Since(resumed).Round(time.Millisecond))
	await(t, l.AwaitSessions(ctx, "n1"))
	expectNoLoss(t, l, load, began)
}

func TestBGPRouterRestartRestoresRoutes(t *testing.T) { restartRouter(t, laboratory(t)) }

func restartRouter(t *testing.T, l *Lab) {
	ctx := t.Context()
	vip := serve(t, l, Service{Name: "rebooted", Policy: localTraffic, Endpoints: At("p11", "p31")}, "n1", "n3")
	await(t, l.Router.Stop())
	if nodes, err := l.Router.NextHops(vip); err != nil || len(nodes) > 0 {
		t.Fatalf("%s is stopped, but its kernel sends %s to %v (%v)", l.Router.software, vip, nodes, err)
	}
	restarted := time.Now()
	await(t, l.Router.Start(ctx))
	await(t, l.AwaitSessions(ctx, NodeNames...))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n3"))
	t.Logf("%s restarted: the routes were back after %s", l.Router.software,
		time.Since(restarted).Round(time.Millisecond))
	if _, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80)); err != nil {
		t.Error(err)
	}
}

// A speaker that starts without its BGPPeers continues to forward, and the router keeps the
// routes. When the BGPPeers are back the routes have not changed.
func TestBGPRestartWithoutPeerKeepsRoute(t *testing.T) { restartWithout(t, "tor1") }

// A speaker that starts without the pool keeps the pool's addresses.
func TestBGPRestartWithoutPoolKeepsRoute(t *testing.T) { restartWithout(t, "pool") }

// restartWithout restarts n1's speaker while a file is missing.
func restartWithout(t *testing.T, file string) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "without-" + file, Policy: localTraffic, Endpoints: At("p11")}, "n1")
	text, err := os.ReadFile(filepath.Join(l.Objects, file+".yaml"))
	await(t, err)
	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))
	await(t, l.Speaker("n1").Terminate())
	await(t, l.Cluster.Delete(file))
	t.Cleanup(func() {
		await(t, l.Cluster.PutText(file, string(text)))
		await(t, l.StartSpeakers(context.WithoutCancel(ctx), NodeNames...))
	})
	await(t, l.Speaker("n1").Start())
	await(t, Await(ctx, Settle, "n1's first state in the kernel", func() error {
		st, err := l.Speaker("n1").Status(ctx)
		if err == nil && !st.Ready {
			err = os.ErrNotExist
		}
		return err
	}))
	await(t, pause(ctx, time.Second))
	await(t, l.Cluster.PutText(file, string(text)))
	await(t, l.AwaitSessions(ctx, NodeNames...))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1"))
	if n := len(l.Observer.RouteChanges(vip, began, time.Now())); n > 0 {
		t.Errorf("the route changed %d times: want it untouched", n)
	}
	expectNoLoss(t, l, load, began)
}
