package bgp

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	r := startRouter(t, routerConf{})
	reg := prometheus.NewPedanticRegistry()
	s := newServer(t, Options{Registerer: reg})
	dead := r.session("dead")
	dead.PeerAddress = dead.PeerAddress.Next().Next()
	alone := state([]Session{dead, r.session("tor1")}, routes("192.0.2.1/32", "2001:db8::1/128"))
	alone.NextHop6 = netip.Addr{}
	_, err := s.Set(t.Context(), alone)
	must(t, err)
	eventually(t, "route", func() bool { return r.adjIn() != "" })
	// The router has the route as soon as it is sent; that its own session is up
	// reaches the server by an event, which may come later.
	eventually(t, "session", func() bool { return s.sessionStatus("tor1").State == Established })
	const want = `
# HELP fanfare_bgp_announced_prefixes Prefixes that are announced to the router now, 0 while the session is down. Observed: sent, not necessarily accepted.
# TYPE fanfare_bgp_announced_prefixes gauge
fanfare_bgp_announced_prefixes{peer="dead"} 0
fanfare_bgp_announced_prefixes{peer="tor1"} 1
# HELP fanfare_bgp_left_out_prefixes Prefixes that cannot be announced to this router, for lack of a next hop or of the address family. Observed.
# TYPE fanfare_bgp_left_out_prefixes gauge
fanfare_bgp_left_out_prefixes{peer="dead"} 1
fanfare_bgp_left_out_prefixes{peer="tor1"} 1
# HELP fanfare_bgp_routes Prefixes that this node announces to all routers. Desired.
# TYPE fanfare_bgp_routes gauge
fanfare_bgp_routes 2
# HELP fanfare_bgp_session_flaps_total How often the BGP session went down although this node did not close it. Observed.
# TYPE fanfare_bgp_session_flaps_total counter
fanfare_bgp_session_flaps_total{peer="dead"} 0
fanfare_bgp_session_flaps_total{peer="tor1"} 0
# HELP fanfare_bgp_session_up Whether the BGP session is established (1) or not (0). Observed.
# TYPE fanfare_bgp_session_up gauge
fanfare_bgp_session_up{peer="dead"} 0
fanfare_bgp_session_up{peer="tor1"} 1
# HELP fanfare_bgp_updates_sent_total UPDATE messages sent to the router. Observed.
# TYPE fanfare_bgp_updates_sent_total counter
fanfare_bgp_updates_sent_total{peer="dead"} 0
fanfare_bgp_updates_sent_total{peer="tor1"} 1
`
	must(t, testutil.GatherAndCompare(reg, strings.NewReader(want)))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}
