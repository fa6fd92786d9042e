package lab

import (
	"net/netip"
	"testing"
	"time"
)

// An address whose rules are written together with another change must also be free of
// untranslated conntrack entries when the router sends packets.
func TestProxyEarlyPacketsAfterAnotherChange(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	s := &StepRun{Lab: l}
	vip, from := netip.MustParseAddr("192.0.2.70"), netip.AddrPortFrom(ClientAddr, 3000)
	await(t, l.Speaker("n3").Terminate())
	run(t, l, "n3", l.Binary, "cleanup", "--run-dir", l.Speaker("n3").RunDir)
	for _, rule := range []string{"add table inet other",
		"add chain inet other forward { type filter hook forward priority 0; }",
		"add rule inet other forward ct state new counter accept"} {
		run(t, l, "n3", "nft", rule)
	}
	t.Cleanup(func() { run(t, l, "n3", "nft", "delete", "table", "inet", "other") })
	run(t, l, "tor1", "ip", "route", "add", vip.String(), "via", NodeAddr("n3", vip).String())
	s.tryBoth(ctx, from, port(vip, 80), port(vip, 7))
	if entries, err := l.Namespace("n3").conntrack(vip); err != nil || len(entries) < 2 {
		t.Fatalf("%d conntrack entries (%v): want the untranslated entries that this test needs", len(entries), err)
	}
	run(t, l, "tor1", "ip", "route", "del", vip.String())
	await(t, l.StartSpeakers(ctx, "n3"))
	await(t, l.Cluster.Put(Service{Name: "other", Policy: localTraffic, Endpoints: At("p32")}))
	t.Cleanup(func() { await(t, l.Cluster.Delete("other")) })
	await(t, pause(ctx, 15*time.Millisecond))
	late := Service{Name: "late", Policy: localTraffic, Ask: []netip.Addr{vip}, Endpoints: At("p31")}
	t.Cleanup(func() { await(t, l.Cluster.Delete(late.Name)) })
	await(t, l.Cluster.Put(late))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n3"))
	if _, err := l.Client.Get(ctx, from, port(vip, 80)); err != nil {
		t.Errorf("the client port of the early packet: %v", err)
	}
}
