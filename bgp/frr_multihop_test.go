package bgp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A router behind another one, which only forwards.
const frrFarConfig = `
hostname far
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.11 remote-as 65010
 neighbor 10.0.0.11 ebgp-multihop 2
 neighbor 10.0.0.12 remote-as 65010
 neighbor 10.0.0.12 ebgp-multihop 2
 neighbor 10.0.0.13 remote-as 65010
 neighbor 10.0.0.13 ttl-security hops 2
 neighbor 10.0.0.14 remote-as 65010
 neighbor 10.0.0.14 ttl-security hops 2
 neighbor 10.0.0.15 remote-as 65001
`

// A router that is two hops away: over eBGP the session must say so, and how far it is
// at most; over iBGP it need not.
func TestFRRMultihop(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := newFRR(t, "far", frrFarConfig)
		node, between := nstest.Node(t), nstest.New(t, "between")
		nstest.Link(t, node, "uplink", between, "near")
		nstest.Link(t, between, "far", r.ns, "eth0")
		between.Addr("near", "10.0.0.1/24")
		between.Addr("far", "10.1.0.1/24")
		between.Forward()
		cases := []struct {
			name   string
			change func(s *Session)
			reason string // empty: the session comes up
		}{
			{"multihop", func(s *Session) { s.EBGPMultihopTTL = 2 }, ""},
			{"nothing said", func(*Session) {}, "no route to host: 10.1.0.3 port 179 does not answer, or is " +
				"not directly connected"},
			{"GTSM", func(s *Session) { s.TTLSecurityHops = 2 }, ""},
			{"GTSM for a neighbour", func(s *Session) { s.TTLSecurityHops = 1 },
				"no answer from 10.1.0.5 port 179; ttlSecurityHops 1 drops packets that have come further or were " +
					"not sent with TTL 255: does the router have it, too?"},
			{"iBGP", func(s *Session) { s.LocalASN = 65001 }, ""},
		}
		var sessions []Session
		for i, c := range cases {
			source, router := fmt.Sprintf("10.0.0.%d", 11+i), fmt.Sprintf("10.1.0.%d", 2+i)
			node.Addr("uplink", source+"/24")
			r.ns.Addr("eth0", router+"/24")
			conf := frrSession(source)
			conf.Name, conf.PeerAddress = c.name, netip.MustParseAddr(router)
			c.change(&conf)
			sessions = append(sessions, conf)
		}
		node.Route("10.1.0.0/24", "10.0.0.1", "uplink")
		r.ns.Route("10.0.0.0/24", "10.1.0.1", "eth0")
		r.run()
		s := newServer(t, Options{})
		_, err := s.Set(t.Context(), state(sessions, routes("192.0.2.1/32")))
		must(t, err)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				if c.reason == "" {
					eventually(t, "session", func() bool {
						st := s.sessionStatus(c.name)
						return st.State == Established && st.Advertised == 1
					})
					return
				}
				eventually(t, c.reason, func() bool { return s.sessionStatus(c.name).LastError == c.reason })
			})
		}
		eventually(t, "route", func() bool { return r.kernel() == "192.0.2.1/32 via 10.1.0.1" })
	})
}
