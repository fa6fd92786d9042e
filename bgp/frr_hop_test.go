package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A router that is reached over both families, and one neighbour after another of
// which takes IPv6 next hops for IPv4.
const frrHopConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor node peer-group
 neighbor node remote-as 65010
 neighbor node timers connect 1
 neighbor 10.0.0.2 peer-group node
 neighbor fd00::2 peer-group node
 neighbor fd00::3 peer-group node
 neighbor fd00::3 capability extended-nexthop
 neighbor fe80::3 peer-group node
 neighbor fe80::3 interface eth0
 neighbor fe80::3 capability extended-nexthop
 address-family ipv6 unicast
  neighbor node activate
`

// hopState is of a node that others know by two addresses more.
func hopState(sessions ...Session) State {
	s := state(sessions, routes("192.0.2.1/32", "2001:db8::1/128"))
	s.NextHop4, s.NextHop6 = netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")
	return s
}

func hopSession(name, router, source string) Session {
	s := frrSession(source)
	s.Name, s.PeerAddress = name, netip.MustParseAddr(router)
	return s
}

func startHopFRR(t *testing.T) *frr {
	r := startFRRWith(t, frrHopConfig)
	nstest.Node(t).Addr("uplink", "10.0.0.9/24", "fd00::3/64", "fd00::9/64", "fe80::3/64")
	r.ns.Addr("eth0", "fe80::9/64")
	return r
}

// A session has routes of both families, whatever it runs over: its own address is
// the next hop for its family, and for the other one the node's.
func TestFRRBothFamilies(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startHopFRR(t)
		s := newServer(t, Options{})
		over4, over6 := hopSession("over4", "10.0.0.1", "10.0.0.2"), hopSession("over6", "fd00::1", "fd00::2")
		have, err := s.Set(t.Context(), hopState(over4, over6))
		must(t, err)
		if got := joined(have); got != "192.0.2.1/32 2001:db8::1/128" {
			t.Errorf("have %s", got)
		}
		for _, c := range []struct{ family, neighbor, want string }{
			{"ipv4", "10.0.0.2", "10.0.0.2"}, {"ipv6", "10.0.0.2", "fd00::9"},
			{"ipv4", "fd00::2", "10.0.0.9"}, {"ipv6", "fd00::2", "fd00::2"},
		} {
			says := func() string {
				return r.vtysh("-c", fmt.Sprintf("show bgp %s unicast neighbors %s routes json", c.family, c.neighbor))
			}
			eventually(t, c.family+" from "+c.neighbor,
				func() bool { return strings.Contains(says(), `"ip":"`+c.want+`"`) })
		}
		// A router that has just started may reset a session once.
		for _, name := range []string{"over4", "over6"} {
			eventually(t, name, func() bool {
				st := s.sessionStatus(name)
				return st.Advertised == 2 && st.LeftOut == 0
			})
		}

		// Without an address to name, each router has its own family, and we say why.
		want := hopState(over4, over6)
		want.NextHop4, want.NextHop6 = netip.Addr{}, netip.Addr{}
		_, err = s.Set(t.Context(), want)
		must(t, err)
		for name, why := range map[string]string{
			"over4": "the session is over IPv4", "over6": "takes no IPv6 next hops for IPv4",
		} {
			eventually(t, name, func() bool {
				st := s.sessionStatus(name)
				return st.Advertised == 1 && st.LeftOut == 1 && strings.Contains(st.Omissions[0].Reason, why)
			})
		}
		eventually(t, "own families only", func() bool {
			return r.kernel() == "192.0.2.1/32 via 10.0.0.2\n2001:db8::1/128 via fd00::2" &&
				!strings.Contains(r.vtysh("-c", "show bgp ipv4 unicast neighbors fd00::2 routes json"), "192.0.2.1") &&
				!strings.Contains(r.vtysh("-c", "show bgp ipv6 unicast neighbors 10.0.0.2 routes json"), "2001:db8::1")
		})
	})
}

// A router with that capability gets IPv4 routes with the node's IPv6 address (RFC 8950), and
// packets go that way, on a node without any IPv4 address in the router's network.
func TestFRRExtendedNextHop(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startHopFRR(t)
		node := nstest.Node(t)
		node.Addr("lo", "192.0.2.1/32")
		r.ns.Addr("lo", "203.0.113.1/32")
		node.Route("203.0.113.0/24", "fd00::1", "uplink")
		served, err := net.Listen("tcp4", "192.0.2.1:8080")
		must(t, err)
		defer served.Close()

		for _, c := range []struct{ router, source string }{{"fd00::1", "fd00::3"}, {"fe80::9%uplink", "fe80::3"}} {
			t.Run(c.router, func(t *testing.T) {
				s := newServer(t, Options{})
				_, err := s.Set(t.Context(), hopState(hopSession("tor1", c.router, c.source)))
				must(t, err)
				want := fmt.Sprintf("192.0.2.1/32 via inet6 %s\n2001:db8::1/128 via %[1]s", c.source)
				took := within(t, time.Minute, "routes", func() bool { return r.kernel() == want })
				t.Logf("IPv4 via %s in the router's kernel after %s", c.source, took.Round(time.Millisecond))
				if got, want := reach(t, r, served), "203.0.113.1"; got != want {
					t.Errorf("the node sees a client %s, want %s", got, want)
				}
				must(t, s.Close(t.Context(), Withdraw))
				eventually(t, "withdrawal", func() bool { return r.kernel() == "" })
			})
		}
	})
}

// reach connects from the router's own network to what the node serves and returns
// the client's address as the node sees it.
func reach(t *testing.T, r *frr, served net.Listener) string {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 1)}, Timeout: 20 * time.Second}
	var err error
	var client net.Conn
	r.ns.Do(func() { client, err = from.Dial("tcp4", served.Addr().String()) })
	must(t, err)
	defer client.Close()
	conn, err := served.Accept()
	must(t, err)
	defer conn.Close()
	return addrOf(conn.RemoteAddr()).String()
}
