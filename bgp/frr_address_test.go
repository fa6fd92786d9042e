package bgp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const frrAddressConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as 65010
 bgp listen range 10.0.0.0/24 peer-group nodes
 bgp listen range fd00::/64 peer-group nodes
 address-family ipv6 unicast
  neighbor nodes activate
`

// A node loses the address that its session is from, and has another one. The router drops the dead
// next hop long before the hold time, and the session is up again from the other address.
func TestFRRLosesSourceAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r, node := newFRR(t, "router", frrAddressConfig), nstest.Node(t)
		nstest.Link(t, node, "uplink", r.ns, "eth0")
		// Otherwise the kernel removes all addresses of a network with the first one.
		node.Sysctl("ipv4/conf/uplink/promote_secondaries", "1")
		node.Addr("uplink", "10.0.0.2/24", "fd00::2/64")
		r.ns.Addr("eth0", "10.0.0.1/24", "fd00::1/64")
		r.run()
		for _, c := range []struct{ router, lost, next, route string }{
			{"10.0.0.1", "10.0.0.2/24", "10.0.0.4/24", "192.0.2.1/32"},
			{"fd00::1", "fd00::2/64", "fd00::4/64", "2001:db8::1/128"},
		} {
			t.Run(c.router, func(t *testing.T) {
				s := newServer(t, Options{})
				session := Session{
					Name: "tor1", PeerAddress: netip.MustParseAddr(c.router), PeerASN: 65001,
					HoldTime: 10 * time.Minute, ConnectTime: time.Second,
				}
				_, err := s.Set(t.Context(), state([]Session{session}, routes(c.route)))
				must(t, err)
				lost, next := netip.MustParsePrefix(c.lost).Addr(), netip.MustParsePrefix(c.next).Addr()
				eventually(t, "session and route", func() bool {
					return s.sessionStatus("tor1").LocalAddress == lost && strings.HasPrefix(r.kernel(), c.route)
				})

				node.Addr("uplink", c.next)
				removeAddress(t, "uplink", c.lost)
				eventually(t, "session from the other address", func() bool {
					st := s.sessionStatus("tor1")
					return st.State == Established && st.LocalAddress == next
				})
				eventually(t, "one session and the route", func() bool {
					return strings.HasPrefix(r.kernel(), c.route) &&
						!strings.Contains(r.vtysh("-c", "show bgp summary established"), lost.String()+" ")
				})
				if st := s.sessionStatus("tor1"); !strings.Contains(st.LossReason,
					"no longer has the address "+lost.String()) {
					t.Errorf("loss reason: %q", st.LossReason)
				}
			})
		}
	})
}

func removeAddress(t *testing.T, name, prefix string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	a, err := netlink.ParseAddr(prefix)
	must(t, err)
	must(t, netlink.AddrDel(link, a))
}
