package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A router with a neighbour for each of our addresses, each of another kind.
const frrSessionsConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.11 remote-as 65010
 neighbor 10.0.0.11 ttl-security hops 1
 neighbor 10.0.0.12 remote-as 65099
 neighbor 10.0.0.13 remote-as 65010
 neighbor 10.0.0.14 remote-as internal
 neighbor 10.0.0.14 ttl-security hops 1
 neighbor 10.0.0.15 remote-as 65010
 neighbor 10.0.0.15 ebgp-multihop 2
 neighbor 10.0.0.16 remote-as 65010
 neighbor 10.0.0.16 password sesame
 neighbor fd00::2 remote-as 65010
 neighbor fd00::2 password sesame
 neighbor 10.0.0.2 remote-as 65010
`

// What a session is made of, with a real router: each kind comes up, the router
// sees us as configured, and where the two ends differ the reason says so.
func TestFRRSessionOptions(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrSessionsConfig)
		node := nstest.Node(t)
		for i := 11; i <= 16; i++ {
			node.Addr("uplink", fmt.Sprintf("10.0.0.%d/24", i))
		}
		for _, c := range []struct {
			name   string
			source string
			change func(s *Session)
			// The router's view of the node, or otherwise the node's status.
			router []string
			reason string
		}{
			{name: "GTSM", source: "10.0.0.11", change: func(s *Session) { s.TTLSecurityHops = 1 },
				router: []string{`"remoteAs":65010`, `"remoteRouterId":"10.255.0.10"`}},
			{name: "GTSM with iBGP", source: "10.0.0.14",
				change: func(s *Session) { s.PeerASN, s.LocalASN, s.TTLSecurityHops = 65001, 65001, 1 },
				router: []string{`"remoteAs":65001`}},
			{name: "local AS number and router ID", source: "10.0.0.12",
				change: func(s *Session) { s.LocalASN, s.RouterID = 65099, netip.MustParseAddr("10.255.0.99") },
				router: []string{`"remoteAs":65099`, `"remoteRouterId":"10.255.0.99"`}},
			{name: "external", source: "10.0.0.13", change: func(s *Session) { s.PeerASN, s.External = 0, true },
				router: []string{`"remoteAs":65010`}},
			{name: "external, but the router is internal", source: "10.0.0.14",
				change: func(s *Session) { s.PeerASN, s.External, s.LocalASN = 0, true, 65001 },
				reason: "wrong AS number: router says AS65001, which is our own, and BGPPeer says external"},
			{name: "source interface", change: func(s *Session) { s.SourceInterface = "uplink" }, source: "10.0.0.2",
				router: []string{`"remoteAs":65010`}},
			{name: "password", source: "10.0.0.16", change: func(s *Session) { s.Password = "sesame" },
				router: []string{`"remoteAs":65010`}},
			{name: "wrong password", source: "10.0.0.16", change: func(s *Session) { s.Password = "simsim" },
				reason: "no answer from 10.0.0.1 port 179; so does a router that has no password for this " +
					"node, or another one"},
			{name: "multihop", source: "10.0.0.15", change: func(s *Session) { s.EBGPMultihopTTL = 2 },
				router: []string{`"remoteAs":65010`}},
			{name: "device, though routes say another", source: "10.0.0.2",
				change: func(s *Session) { s.Device = "uplink" }, router: []string{`"remoteAs":65010`}},
			{name: "device that is not there", source: "10.0.0.2", change: func(s *Session) { s.Device = "red" },
				reason: "device red is not on this node"},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := newServer(t, Options{})
				conf := frrSession(c.source)
				if c.change != nil {
					c.change(&conf)
				}
				if conf.SourceInterface != "" {
					conf.SourceAddress = netip.Addr{}
				}
				if conf.Device == "uplink" {
					nstest.Link(t, node, "detour", nstest.New(t, "nowhere"), "eth0")
					node.Route("10.0.0.1/32", "", "detour")
				}
				_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
				must(t, err)
				if c.reason != "" {
					eventually(t, c.reason, func() bool { return s.sessionStatus("tor1").LastError == c.reason })
					return
				}
				eventually(t, "route", func() bool { return r.kernel() == "192.0.2.1/32 via "+c.source })
				says := strings.ReplaceAll(r.vtysh("-c", "show bgp neighbors "+c.source+" json"), " ", "")
				for _, want := range c.router {
					if !strings.Contains(says, want) {
						t.Errorf("the router does not say %s but:\n%s", want, says)
					}
				}
				if st := s.sessionStatus("tor1"); st.PeerASN != 65001 || st.PeerRouterID.String() != "10.255.0.1" {
					t.Errorf("status: %+v", st)
				}
				must(t, s.Close(t.Context(), Withdraw))
				within(t, 20*time.Second, "withdrawal", func() bool { return r.kernel() == "" })
			})
		}
	})
}

// The password of one session changes on both ends while another session, without
// one and with the same node, goes on.
func TestFRRPasswordRotation(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrSessionsConfig)
		nstest.Node(t).Addr("uplink", "10.0.0.16/24")
		other := startFake(t, func(c *fakeConn) {
			c.establish()
			c.readAll()
		}).session()
		other.Name, other.HoldTime = "other", time.Minute
		conf := frrSession("10.0.0.16")
		conf.Password = "sesame"
		s := newServer(t, Options{})
		set := func() {
			t.Helper()
			_, err := s.Set(t.Context(), state([]Session{other, conf}, routes("192.0.2.1/32")))
			must(t, err)
		}
		set()
		eventually(t, "route", func() bool { return r.kernel() == "192.0.2.1/32 via 10.0.0.16" })
		eventually(t, "the other session", func() bool { return s.sessionStatus("other").State == Established })
		since := s.sessionStatus("other").Since

		conf.Password = "simsim"
		set()
		eventually(t, "wrong password", func() bool {
			return strings.Contains(s.sessionStatus("tor1").LastError, "or another one")
		})
		r.vtysh("-c", "configure terminal", "-c", "router bgp 65001", "-c", "neighbor 10.0.0.16 password simsim")
		eventually(t, "route with the new password", func() bool { return r.kernel() == "192.0.2.1/32 via 10.0.0.16" })
		if st := s.sessionStatus("other"); st.Flaps != 0 || st.Since != since {
			t.Errorf("the other session: %+v", st)
		}
	})
}

// TCP MD5 over IPv6 signs for another kind of address.
func TestFRRPasswordIPv6(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrSessionsConfig)
		conf := frrSession("fd00::2")
		conf.PeerAddress, conf.Password = netip.MustParseAddr("fd00::1"), "sesame"
		s := newServer(t, Options{})
		_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
		must(t, err)
		eventually(t, "session", func() bool { return s.sessionStatus("tor1").State == Established })
		if says := r.vtysh("-c", "show bgp neighbors fd00::2"); !strings.Contains(says, "Peer Authentication Enabled") {
			t.Errorf("the router says:\n%s", says)
		}
	})
}
