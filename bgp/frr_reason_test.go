package bgp

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A router that finds fault with nearly each of its neighbours.
const frrReasonConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.11 remote-as 65010
 neighbor 10.0.0.12 remote-as 65011
 neighbor 10.0.0.13 remote-as 65010
 neighbor 10.0.0.13 password sesame
 neighbor 10.0.0.14 remote-as 65010
 neighbor 10.0.0.18 remote-as 65010
 neighbor 10.0.0.19 remote-as 65010
 address-family ipv4 unicast
  neighbor 10.0.0.18 maximum-prefix 1
`

// The reasons for sessions with a real router that do not come up, or end. All of them are
// of one node, and the healthy session is not affected.
func TestFRRReasons(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrReasonConfig)
		node := nstest.Node(t)
		node.Addr("uplink", "10.0.0.11/24", "10.0.0.12/24", "10.0.0.13/24", "10.0.0.14/24", "10.0.0.15/24",
			"10.0.0.18/24", "10.0.0.19/24")
		r.ns.Addr("eth0", "10.0.0.31/24", "10.0.0.32/24", "10.0.0.33/24", "10.0.0.34/24", "10.0.0.35/24",
			"10.0.0.36/24", "10.0.0.38/24", "10.0.0.39/24")
		addr := netip.MustParseAddr
		cases := []struct {
			name, router, source string
			change               func(s *Session)
			reason               string // of the attempts
			loss                 string // of a session that was up
		}{
			{name: "wrong AS number", router: "10.0.0.31", source: "10.0.0.11",
				change: func(s *Session) { s.PeerASN = 65009 },
				reason: "wrong AS number: router says AS65001, BGPPeer says AS65009"},
			{name: "another AS number expected", router: "10.0.0.32", source: "10.0.0.12",
				reason: "router refuses our AS65010: it expects another AS number (OPEN Message " +
					"Error/Bad Peer AS received)"},
			{name: "password on the router only", router: "10.0.0.33", source: "10.0.0.13",
				reason: "no answer from 10.0.0.33 port 179"},
			{name: "password here only", router: "10.0.0.34", source: "10.0.0.14",
				change: func(s *Session) {
					s.Password = "sesame"
				}, reason: "no answer from 10.0.0.34 port 179; so does a router that has no password for this " +
					"node, or another one"},
			{name: "unknown to the router", router: "10.0.0.35", source: "10.0.0.15",
				reason: "router closed the connection before its OPEN: it may not know this node as a neighbour"},
			{name: "refused", router: "10.0.0.36", source: "10.0.0.2", change: func(s *Session) { s.PeerPort = 1790 },
				reason: "connection refused: nothing listens at 10.0.0.36 port 1790"},
			// Longer than the kernel looks for a neighbour.
			{name: "no host there", router: "10.0.0.200", source: "10.0.0.2",
				change: func(s *Session) { s.ConnectTime = 20 * time.Second },
				reason: "no route to host: 10.0.0.200 port 179 does not answer, or is not directly connected"},
			{name: "no way there", router: "203.0.113.9", source: "10.0.0.2",
				reason: "network is unreachable: this node has no route to 203.0.113.9"},
			{name: "not our address", router: "10.0.0.37", source: "10.0.0.77",
				reason: "source address 10.0.0.77 is not on this node"},
			{name: "too many prefixes", router: "10.0.0.38", source: "10.0.0.18",
				loss: "router ended the session: Cease/Maximum Number of Prefixes Reached received"},
			{name: "shut down", router: "10.0.0.39", source: "10.0.0.19",
				loss: `router ended the session: Cease/Administrative Shutdown ("maintenance") received`},
		}
		good := frrSession("10.0.0.2")
		good.HoldTime = 9 * time.Second // many tests share this machine
		sessions := []Session{good}
		for _, c := range cases {
			conf := frrSession(c.source)
			conf.Name, conf.PeerAddress = c.name, addr(c.router)
			if c.change != nil {
				c.change(&conf)
			}
			sessions = append(sessions, conf)
		}
		s := newServer(t, Options{})
		_, err := s.Set(t.Context(), state(sessions, routes("192.0.2.1/32", "192.0.2.2/32")))
		must(t, err)
		established := func(name string) func() bool {
			return func() bool { return s.sessionStatus(name).State == Established }
		}
		eventually(t, "the session that is in order", established("tor1"))
		since := s.sessionStatus("tor1").Since
		eventually(t, "the session that is shut down", established("shut down"))
		// The router counts before it reads an UPDATE.
		eventually(t, "the first routes", func() bool { return s.sessionStatus("too many prefixes").Updates > 0 })
		_, err = s.Set(t.Context(), state(sessions, routes("192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32")))
		must(t, err)
		r.vtysh("-c", "configure terminal", "-c", "router bgp 65001", "-c",
			"neighbor 10.0.0.19 shutdown message maintenance")
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				if c.reason != "" {
					eventually(t, c.reason, func() bool { return s.sessionStatus(c.name).LastError == c.reason })
				} else {
					eventually(t, c.loss, func() bool { return s.sessionStatus(c.name).LossReason == c.loss })
				}
				if st := s.sessionStatus(c.name); (st.Flaps > 0) != (c.loss != "") {
					t.Errorf("lost %d times: %s", st.Flaps, st.LossReason)
				}
			})
		}
		if st := s.sessionStatus("tor1"); st.State != Established || st.Since != since || st.Flaps != 0 {
			t.Errorf("the session that is in order: %+v", st)
		}

		// At last the router falls silent, and nothing that comes later hides that it was this.
		r.signal("bgpd", syscall.SIGSTOP)
		const silent = "hold timer expired: nothing received from the router for 9s"
		eventually(t, silent, func() bool { return s.sessionStatus("tor1").LossReason == silent })
		r.kill()
		const refused = "connection refused: nothing listens at 10.0.0.1 port 179"
		eventually(t, refused, func() bool {
			return s.sessionStatus("tor1").DownReason() == silent+"; since then: "+refused
		})
		r.start()
		eventually(t, "the session again", established("tor1"))
	})
}
