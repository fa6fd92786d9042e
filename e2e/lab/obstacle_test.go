package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// A node whose kernel does not forward announces nothing that it would have to forward: the route
// leaves the router, clients are served by other nodes, and when the kernel forwards again the
// route is back at once. A speaker that starts on such a node does not announce for a moment
// either.
func TestObstacleHoldsAnnouncementBack(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	// A pod on n3 could not be reached from other nodes either.
	vip := serve(t, l, Service{Name: "obstructed", Endpoints: At("p11", "p21")}, "n1", "n2", "n3")
	forward := func(value string) { run(t, l, "n3", "sysctl", "-w", "net.ipv4.ip_forward="+value) }
	t.Cleanup(func() { forward("1") })

	forward("0")
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n2"))
	holdsBack(t, l, vip)
	forward("1")
	began := time.Now()
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n2", "n3"))
	t.Logf("announced again after %s", time.Since(began).Round(time.Millisecond))

	// The router keeps the route of a speaker that restarts, and drops it when the new one
	// does not announce it.
	await(t, l.Speaker("n3").Terminate())
	forward("0")
	await(t, l.StartSpeakers(ctx, "n3"))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n2"))
	holdsBack(t, l, vip)
	forward("1")
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n2", "n3"))
}

// A node on which another program's forward chain drops everything that is forwarded announces
// nothing: an accept of Fanfare's rules cannot override that chain. The route leaves the router with
// a reason on the node, although the kernel still has the rules, and is back when the chain is gone.
func TestObstacleFirewallHoldsAnnouncementBack(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vips := serveDual(t, l, Service{Name: "firewalled", Endpoints: At("p11", "p21")})
	t.Cleanup(func() { await(t, l.Unblock(context.WithoutCancel(ctx), "n3")) })
	await(t, l.addDropRules(ctx, "n3", "inet", "chain forward { type filter hook forward priority 0; policy drop; }"))
	const why = `chain inet ` + dropTable +
		` forward drops traffic to the addresses, on its way to pods on other nodes: let it accept "ct status dnat" before`
	for _, vip := range vips {
		await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n2"))
	}
	text, err := l.Speaker("n3").StatusText(ctx)
	await(t, err)
	words := strings.Join(strings.Fields(text), " ")
	for _, vip := range vips {
		if want := vip.String() + " shop/firewalled tcp/7,tcp/80,udp/7 yes no: " + why; !strings.Contains(words, want) {
			t.Errorf("n3 does not show %q:\n%s", want, text)
		}
	}
	if want := "Needs attention: " + why; !strings.Contains(words, want) {
		t.Errorf("n3 does not show %q:\n%s", want, text)
	}
	get := func(by string) {
		t.Helper()
		if _, err := l.Client.Get(ctx, netip.AddrPortFrom(ClientAddr, 0), port(vips[0], 80)); err != nil {
			t.Errorf("by %s: %v", by, err)
		}
	}
	get("the other nodes")
	// What the router would still send to n3 is lost, so the withdrawal is right.
	end := through(t, l, vips[0], "n3")
	expectDropped(t, l.Client, ClientAddr, port(vips[0], 80))
	end()

	await(t, l.Unblock(ctx, "n3"))
	for _, vip := range vips {
		await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))
	}
	end = through(t, l, vips[0], "n3")
	get("n3")
	end()
}

// holdsBack checks for longer than two looks for obstacles that n3 announces nothing, names the
// reason, and that clients do not notice.
func holdsBack(t *testing.T, l *Lab, vip netip.Addr) {
	t.Helper()
	text, err := l.Speaker("n3").StatusText(t.Context())
	await(t, err)
	if !strings.Contains(text, " no: net.ipv4.ip_forward is 0") {
		t.Errorf("n3 does not say why:\n%s", text)
	}
	for i, end := 0, time.Now().Add(6*time.Second); time.Now().Before(end); i++ {
		hops, err := l.Router.NextHops(vip)
		await(t, err)
		if !slices.Equal(hops, []string{"n1", "n2"}) {
			t.Fatalf("the router has %v", hops)
		}
		if _, err := l.Client.Get(t.Context(), netip.AddrPortFrom(ClientAddr, 0), port(vip, 80)); err != nil {
			t.Fatal(fmt.Errorf("request %d: %w", i, err))
		}
		await(t, pause(t.Context(), 50*time.Millisecond))
	}
}
