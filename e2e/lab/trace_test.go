package lab

import (
	"regexp"
	"testing"
	"time"
)

// Of a request that is lost, also while it connects, the report tells the client's port, which node
// it went by, and how far it came.
func TestLabLossesNameConntrackState(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "deaf", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	run(t, l, "p11", "nft", "add table inet deaf; add chain inet deaf input { type filter hook input priority 0; }; add rule inet deaf input tcp dport 8080 drop")
	t.Cleanup(func() { run(t, l, "p11", "nft", "delete table inet deaf") })
	load := l.Client.StartLoad(ctx, port(vip, 80))
	if err := pause(ctx, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	r := load.Stop()
	if len(r.Lost) == 0 || len(r.Lost) != r.Sent {
		t.Fatalf("%s: want all lost", r)
	}
	want := regexp.MustCompile(`connect: dial tcp \S+:\d+->` + regexp.QuoteMeta(vip.String()) + `:80: i/o timeout; ` +
		`\S*n1 has tcp 6 \d+ SYN_SENT src=.* \[UNREPLIED\] src=10\.244\.1\.11 .*; \S*n2 has no entry; \S*n3 has no entry`)
	if losses := r.Losses(r.Began); !want.MatchString(losses) {
		t.Errorf("%s\nwant %s", losses, want)
	}
}
