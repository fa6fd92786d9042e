package lab

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The router has the aggregate and no host route, except for a Service with the policy
// Local. Clients of an unassigned address of the aggregate are refused: their packets
// neither time out nor loop. Announcing and withdrawing the aggregate loses no request.
func TestBGPAggregate(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "many", Endpoints: At("p11", "p31")}, NodeNames...)
	t.Cleanup(l.Observer.Cover(vip)) // the aggregate's next hops also move requests
	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))

	await(t, l.Cluster.PutText("advertisement", advertisement))
	t.Cleanup(func() { _ = l.Cluster.Delete("advertisement") }) // if it still exists
	announceByAdvertisement(t, l)
	await(t, l.Router.AwaitVia(ctx, Settle, aggregate, NodeNames...))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip))
	if _, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80)); err != nil {
		t.Errorf("a client of %s, which is part of %s: %v", vip, aggregate, err)
	}
	expectRefused(t, l, "192.0.2.77", "192.0.3.77")
	expectOnlyRoute(t, l, aggregate)

	t.Run("Local", func(t *testing.T) {
		local := serve(t, l, Service{Name: "alone", Policy: localTraffic, Endpoints: At("p21")}, "n2")
		await(t, l.Router.AwaitVia(ctx, Settle, aggregate, NodeNames...))
		answer, err := l.Client.Get(ctx, netip.AddrPort{}, port(local, 80))
		if err != nil || answer.Pod != "p21" {
			t.Errorf("a client of %s: %v, %v", local, answer, err)
		}
	})

	await(t, l.Cluster.Announce(l.Objects, "BGP"))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))
	await(t, l.Router.AwaitVia(ctx, Settle, aggregate))
	expectNoLoss(t, l, load, began)
}

// announceByAdvertisement sets the lab's pool to announce Advertised until the test ends.
func announceByAdvertisement(t *testing.T, l *Lab) {
	t.Helper()
	await(t, l.Cluster.Announce(l.Objects, "Advertised"))
	t.Cleanup(func() { await(t, l.Cluster.Announce(l.Objects, "BGP")) })
}

// expectOnlyRoute checks that each node reports exactly one prefix announced to the router,
// with that node as the next hop.
func expectOnlyRoute(t *testing.T, l *Lab, prefix netip.Prefix) {
	t.Helper()
	for _, n := range NodeNames {
		text, err := l.Speaker(n).command(t.Context(), "routes", "tor1", "--run-dir", l.Speaker(n).RunDir)
		hop := NodeAddr(n, prefix.Addr()).String()
		if words := strings.Fields(text); err != nil || !slices.Contains(words, prefix.String()) ||
			!slices.Contains(words, hop) || strings.Count(text, "tor1") != 1 {
			t.Errorf("%s, %v: want %s via %s, and no other route, in\n%s", n, err, prefix, hop, text)
		}
	}
}

// expectRefused checks that clients of addresses without a Service are refused.
func expectRefused(t *testing.T, l *Lab, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		to := port(netip.MustParseAddr(a), 80)
		for name, ask := range map[string]func(context.Context, netip.AddrPort, netip.AddrPort) (Answer, error){
			"TCP": l.Client.Get, "UDP": l.Client.AskUDP,
		} {
			// A packet in a routing loop would get an answer too, but another one: from the router
			// where its TTL expires.
			if _, err := ask(t.Context(), netip.AddrPort{}, to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s to %s: %v: want it refused", name, to, err)
			}
		}
	}
}

// An aggregate of IPv6 addresses, while the same Service's IPv4 address has a host route.
func TestBGPAggregateIPv6(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	both := Service{
		Name: "sixes", Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Endpoints: At("p11", "p31"),
	}
	vip := serve(t, l, both, NodeNames...)
	vip6, err := l.AwaitAddress(ctx, "shop/sixes", true)
	await(t, err)
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip6, NodeNames...))
	prefix := netip.MustParsePrefix("2001:db8:1::/112")
	await(t, l.Cluster.PutText("advertisement",
		strings.Replace(advertisement, "aggregationLength: 23", "aggregationLengthV6: 112", 1)))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		await(t, l.Cluster.Delete("advertisement"))
		await(t, l.Router.AwaitNextHops(ctx, Settle, vip6, NodeNames...))
		await(t, l.Router.AwaitVia(ctx, Settle, prefix))
	})
	announceByAdvertisement(t, l)
	await(t, l.Router.AwaitVia(ctx, Settle, prefix, NodeNames...))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip6))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))
	if _, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip6, 80)); err != nil {
		t.Errorf("a client of %s, which is part of %s: %v", vip6, prefix, err)
	}
}
