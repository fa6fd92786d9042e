package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const frrTimerConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.11 remote-as 65010
 neighbor 10.0.0.12 remote-as 65010
 neighbor 10.0.0.12 timers 20 60
 neighbor 10.0.0.13 remote-as 65010
 neighbor 10.0.0.13 timers 2 6
 neighbor 10.0.0.14 remote-as 65010
 neighbor 10.0.0.14 timers 600 3600
`

// Of both ends' hold times the router keeps the lower one, and it receives
// KEEPALIVEs as often as configured.
func TestFRRTimers(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrTimerConfig)
		node := nstest.Node(t)
		var sessions []Session
		for i, timers := range []struct {
			hold, keepalive time.Duration
		}{{}, {hold: 30 * time.Second}, {hold: 90 * time.Second}, {time.Hour, time.Second}} {
			source, router := fmt.Sprintf("10.0.0.%d", 11+i), fmt.Sprintf("10.0.0.%d", 31+i)
			node.Addr("uplink", source+"/24")
			r.ns.Addr("eth0", router+"/24")
			conf := frrSession(source)
			conf.Name, conf.PeerAddress, conf.HoldTime, conf.KeepaliveTime = source, netip.MustParseAddr(router),
				timers.hold, timers.keepalive
			sessions = append(sessions, conf)
		}
		s := newServer(t, Options{})
		_, err := s.Set(t.Context(), state(sessions, nil))
		must(t, err)
		for source, want := range map[string]struct{ hold, keepalive int }{
			"10.0.0.11": {90_000, 30_000}, // ours, by default, against 180 s
			"10.0.0.12": {30_000, 10_000}, // ours
			"10.0.0.13": {6_000, 2_000},   // the router's
			"10.0.0.14": {3_600_000, 600_000},
		} {
			eventually(t, source, func() bool { return s.sessionStatus(source).State == Established })
			if says := r.neighbor(source); says.Hold != want.hold || says.Keepalive != want.keepalive {
				t.Errorf("%s: the router says hold time %d ms and keepalive %d ms, want %+v", source, says.Hold,
					says.Keepalive, want)
			}
		}
		// The first is the end of the OPENs. A third of the hold time would be 20 minutes.
		eventually(t, "KEEPALIVEs", func() bool { return r.neighbor("10.0.0.14").Messages.KeepalivesReceived >= 4 })
	})
}

// An frrNeighbor is the router's view of a neighbour.
type frrNeighbor struct {
	Hold      int `json:"bgpTimerHoldTimeMsecs"`
	Keepalive int `json:"bgpTimerKeepAliveIntervalMsecs"`
	Messages  struct {
		KeepalivesReceived int `json:"keepalivesRecv"`
	} `json:"messageStats"`
	Families map[string]struct {
		Sent int `json:"sentPrefixCounter"`
	} `json:"addressFamilyInfo"`
}

// neighbor is zero for one that the router does not know.
func (r *frr) neighbor(addr string) frrNeighbor {
	r.t.Helper()
	says := map[string]frrNeighbor{}
	text := r.vtysh("-c", "show bgp neighbors "+addr+" json")
	if err := json.Unmarshal([]byte(text), &says); err != nil {
		r.t.Fatalf("neighbour %s: %v: %s", addr, err, text)
	}
	return says[addr]
}
