package lab

import (
	"regexp"
	"testing"
	"time"
)

// The report of a lost request names the client's port, the ingress node and the conntrack
// state, also if the request was lost while connecting.
func TestLabLossesNameConntrackState(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "silent", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	run(t, l, "p11", "nft", "add table inet silent; add chain inet silent input { type filter hook input priority 0; }; add rule inet silent input tcp dport 8080 drop")
	t.Cleanup(func() { run(t, l, "p11", "nft", "delete table inet silent") })
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
