package lab

import (
	"fmt"
	"regexp"
	"testing"
	"time"
)

// The report of a lost request names the client's port, the ingress node and the conntrack
// state, also if the request was lost while connecting, or was a datagram.
func TestLabLossesNameConntrackState(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "silent", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	run(t, l, "p11", "nft", "add table inet silent; add chain inet silent input { type filter hook input priority 0; "+
		"}; add rule inet silent input meta l4proto { tcp, udp } drop")
	t.Cleanup(func() { run(t, l, "p11", "nft", "delete table inet silent") })
	for _, tt := range []struct {
		load *Load
		want string
	}{
		{l.Client.StartLoad(ctx, port(vip, 80)),
			`connect: dial tcp \S+:\d+->%s:80: i/o timeout; \S*n1 has tcp 6 \d+ SYN_SENT`},
		{l.Client.StartUDPLoad(ctx, port(vip, 7)), `read udp \S+:\d+->%s:7: i/o timeout; \S*n1 has udp 17 \d+`},
	} {
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		r := tt.load.Stop()
		if len(r.Lost) == 0 || len(r.Lost) != r.Sent {
			t.Errorf("%s: want all lost", r)
		}
		want := regexp.MustCompile(fmt.Sprintf(tt.want, regexp.QuoteMeta(vip.String())) +
			` src=.* \[UNREPLIED\] src=10\.244\.1\.11 .*; \S*n2 has no entry; \S*n3 has no entry`)
		if losses := r.Losses(r.Began); !want.MatchString(losses) {
			t.Errorf("%s\nwant %s", losses, want)
		}
	}
}
