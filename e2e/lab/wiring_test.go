package lab

import (
	"context"
	"net/netip"
	"testing"
	"time"
)

// Without speakers: a static route replaces BGP, and pods' addresses replace VIPs.
func TestLabReachesPods(t *testing.T) {
	l, ctx := labWithoutSpeakers(t), t.Context()
	for _, p := range []struct{ prefix, via string }{
		{"10.244.1.0/24", "198.51.100.11"}, {"2001:db8:244:1::/64", "2001:db8:51::11"},
	} {
		staticRoute(t, l, p.prefix, p.via)
	}
	for _, addr := range []string{"10.244.1.11", "10.244.1.12", "2001:db8:244:1::11", "2001:db8:244:1::12"} {
		to := netip.MustParseAddr(addr)
		want := ClientAddr
		if to.Is6() {
			want = ClientAddr6
		}
		a, err := l.Client.Get(ctx, netip.AddrPort{}, port(to, WebPort))
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		// The port may differ: conntrack chooses another one if an entry through a VIP has the
		// same.
		if a.Saw.Addr() != want {
			t.Errorf("%s: saw %s, the client is %s: want %s", addr, a.Saw, a.From, want)
		}
		if a, err = l.Client.AskUDP(ctx, netip.AddrPort{}, port(to, EchoPort)); err != nil || a.Saw.Addr() != want {
			t.Errorf("%s by UDP: %+v, %v", addr, a, err)
		}
	}
}

// Pods reach one another across nodes, as with a CNI plug-in that routes.
func TestLabRoutesBetweenNodes(t *testing.T) {
	l, ctx := labWithoutSpeakers(t), t.Context()
	for _, from := range PodNames {
		for _, to := range []string{"10.244.3.11", "2001:db8:244:3::11"} {
			if from == "p31" {
				continue
			}
			c := Client{Namespace: l.Namespace(from)}
			if a, err := c.Get(ctx, netip.AddrPort{}, port(netip.MustParseAddr(to), WebPort)); err != nil ||
				a.Saw.Addr() != a.From.Addr() {
				t.Errorf("%s to %s: %+v, %v", from, to, a, err)
			}
		}
	}
}

// Each node answers for the address itself, so that the answer identifies the node.
func TestLabIngressPredictsNextHop(t *testing.T) {
	l, ctx := labWithoutSpeakers(t), t.Context()
	addr := netip.MustParseAddr("192.0.2.250")
	route := []string{"ip", "route", "add", addr.String()}
	for _, n := range NodeNames {
		run(t, l, n, "ip", "addr", "add", addr.String(), "dev", "lo")
		t.Cleanup(func() { run(t, l, n, "ip", "addr", "del", addr.String(), "dev", "lo") })
		pod, err := StartPod(ctx, n, l.Namespace(n))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pod.Kill)
		route = append(route, "nexthop", "via", NodeAddr(n, addr).String())
	}
	run(t, l, "tor1", route...)
	t.Cleanup(func() { run(t, l, "tor1", "ip", "route", "del", addr.String()) })

	seen := map[string]int{}
	for range 30 {
		a, err := l.Client.Get(ctx, netip.AddrPort{}, port(addr, WebPort))
		if err != nil {
			t.Fatal(err)
		}
		want, err := l.Router.Ingress(ctx, "tcp", a.From, port(addr, WebPort))
		if err != nil {
			t.Fatal(err)
		}
		if a.Pod != want {
			t.Errorf("%s: went to %s, predicted %s", a.From, a.Pod, want)
		}
		seen[a.Pod]++
	}
	if len(seen) != 3 {
		t.Errorf("answered by %v: want all three nodes", seen)
	}
}

// A load counts lost requests while a server is killed.
func TestLabCountsLosses(t *testing.T) {
	l, ctx := labWithoutSpeakers(t), t.Context()
	staticRoute(t, l, "10.244.1.0/24", "198.51.100.11")
	load := l.Client.StartLoad(ctx, netip.MustParseAddrPort("10.244.1.11:8080"))
	if err := pause(ctx, 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	l.Pod("p11").Kill()
	if err := pause(ctx, 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := l.StartPod(ctx, "p11"); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	if err := pause(ctx, 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	report := load.Stop()
	t.Logf("the server was stopped for %s: %s", ms(back.Sub(killed)), report)
	for _, loss := range report.Lost {
		if loss.End.Before(killed) || loss.Begin.After(back) {
			t.Errorf("lost while the server ran:\n%s", report.Losses(killed))
			break
		}
	}
	// A busy machine starts requests late and catches up.
	if lost, got := len(report.Lost), report.Pods["p11"]; lost < 5 || got < 80 {
		t.Errorf("%d lost in 0.2 s and %d answered in 1 s, at %d/s", lost, got, Rate)
	}
}

func TestLabFlowsEndWithPod(t *testing.T) {
	l, ctx := labWithoutSpeakers(t), t.Context()
	staticRoute(t, l, "10.244.1.0/24", "198.51.100.11")
	flows, err := l.Client.OpenFlows(ctx, 5, netip.MustParseAddrPort("10.244.1.11:7000"))
	if err != nil {
		t.Fatal(err)
	}
	defer flows.Close()
	if err := flows.AwaitLines(ctx, 3); err != nil {
		t.Fatal(err)
	}
	l.Pod("p11").Kill()
	t.Cleanup(func() {
		if err := l.StartPod(context.WithoutCancel(ctx), "p11"); err != nil {
			t.Error(err)
		}
	})
	if err := flows.AwaitLines(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for _, f := range flows.All {
		if f.Err() == nil {
			t.Errorf("%s is open although its pod was killed", f.From)
		}
	}
}

func run(t *testing.T, l *Lab, node string, args ...string) string {
	t.Helper()
	out, err := l.Namespace(node).Run(context.WithoutCancel(t.Context()), args...)
	if err != nil {
		t.Error(err)
	}
	return out
}

func staticRoute(t *testing.T, l *Lab, prefix, via string) {
	t.Helper()
	run(t, l, "tor1", "ip", "route", "add", prefix, "via", via)
	t.Cleanup(func() { run(t, l, "tor1", "ip", "route", "del", prefix) })
}
