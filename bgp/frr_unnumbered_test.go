package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// frrUnnumbered is the router of docs/tasks/unnumbered-bgp.md, which knows a link and no
// address. It sends advertisements more often, so that the test need not wait.
func frrUnnumbered(t *testing.T) string {
	t.Helper()
	return "interface eth0\n ipv6 nd ra-interval 1\nexit\n" +
		strings.ReplaceAll(guide(t, "tasks/unnumbered-bgp.md", "Unnumbered"), "swp1", "eth0") +
		" exit-address-family\n neighbor eth0 timers 1 3\n neighbor eth0 timers connect 1\n"
}

func unnumbered(name, iface string) Session {
	return Session{Name: name, Interface: iface, External: true, HoldTime: 3 * time.Second, ConnectTime: time.Second}
}

// Both ends learn of each other by router advertisements. The routes of both
// families go over link-local next hops, packets go with them, and the session
// follows the link.
func TestFRRUnnumbered(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrUnnumbered(t))
		node := nstest.Node(t)
		node.Addr("lo", "192.0.2.1/32")
		r.ns.Addr("lo", "203.0.113.1/32")
		served, err := net.Listen("tcp4", "192.0.2.1:8080")
		must(t, err)
		defer served.Close()

		s := newServer(t, Options{})
		_, err = s.Set(t.Context(), state([]Session{unnumbered("tor1", "uplink")},
			routes("192.0.2.1/32", "2001:db8::1/128")))
		must(t, err)
		up := func() bool {
			st := s.sessionStatus("tor1")
			return st.State == Established && r.kernel() == unnumberedRoutes(st.LocalAddress)
		}
		took := within(t, time.Minute, "routes", up)
		t.Logf("no address was configured; routes of both families in the router's kernel after %s:\n%s",
			took.Round(time.Millisecond), r.kernel())
		st := s.sessionStatus("tor1")
		if !st.PeerAddress.IsLinkLocalUnicast() || st.PeerAddress.Zone() != "uplink" || st.PeerASN != 64512 {
			t.Errorf("status: %+v", st)
		}
		node.Route("203.0.113.0/24", st.PeerAddress.WithZone("").String(), "uplink")
		if got := reach(t, r, served); got != "203.0.113.1" {
			t.Errorf("the node sees a client %s", got)
		}

		// One advertisement after another changes nothing.
		flaps := st.Flaps
		sent := r.advertised()
		eventually(t, "three more advertisements", func() bool { return r.advertised() >= sent+3 })
		if now := s.sessionStatus("tor1"); now.Flaps != flaps || now.Since != st.Since {
			t.Errorf("the session flapped: %s", now.LastError)
		}

		lost := func() {
			t.Helper()
			eventually(t, "both ends without the other", func() bool {
				return !s.sessionStatus("tor1").PeerAddress.IsValid() &&
					!strings.Contains(r.vtysh("-c", "show bgp neighbors eth0"), "state = Established")
			})
		}
		for _, c := range []struct {
			name   string
			change func()
			reason string
		}{
			{"the router's end goes down", func() { r.ns.Down("eth0") }, "interface uplink has no carrier"},
			{"ours goes down", func() { node.Down("uplink") }, "interface uplink is down"},
		} {
			c.change()
			took := within(t, time.Minute, c.name, func() bool { return s.sessionStatus("tor1").LastError == c.reason })
			t.Logf("%s: noticed after %s", c.name, took.Round(time.Millisecond))
			lost()
			r.ns.Up("eth0")
			node.Up("uplink")
			took = within(t, time.Minute, "up again", up)
			t.Logf("%s, and comes back: routes after %s", c.name, took.Round(time.Millisecond))
		}

		// Another neighbour, and then another node to it.
		before := s.sessionStatus("tor1")
		another := func(ns *nstest.NS, name, mac, want string) {
			t.Helper()
			ns.Down(name)
			lost()
			ns.MAC(name, mac)
			ns.Up(name)
			defer func() {
				if t.Failed() {
					t.Logf("the router says\n%s\n%s", r.vtysh("-c", "show ip route", "-c", "show bgp ipv4 unicast"),
						r.kernel())
				}
			}()
			took := within(t, time.Minute, want, func() bool {
				st := s.sessionStatus("tor1")
				return up() && st.PeerAddress.WithZone("").String()+" to "+st.LocalAddress.WithZone("").String() == want
			})
			t.Logf("%s: routes after %s", want, took.Round(time.Millisecond))
		}
		ours := before.LocalAddress.WithZone("").String()
		another(r.ns, "eth0", "02:00:5e:00:53:01", "fe80::5eff:fe00:5301 to "+ours)
		another(r.ns, "eth0", "02:00:5e:00:53:02", "fe80::5eff:fe00:5302 to "+ours)
		another(node, "uplink", "02:00:5e:00:53:03", "fe80::5eff:fe00:5302 to fe80::5eff:fe00:5303")
		must(t, s.Close(t.Context(), Withdraw))
		eventually(t, "withdrawal", func() bool { return r.kernel() == "" })
	})
}

func unnumberedRoutes(local netip.Addr) string {
	return fmt.Sprintf("192.0.2.1/32 via inet6 %s\n2001:db8::1/128 via %[1]s", local.WithZone(""))
}

var advertisements = regexp.MustCompile(`ND router advertisements sent: (\d+)`)

// advertised counts the advertisements that the router has sent.
func (r *frr) advertised() int {
	m := advertisements.FindStringSubmatch(r.vtysh("-c", "show interface eth0"))
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	must(r.t, err)
	return n
}

// Another host on the link that advertises itself as a router does not take the session, also
// after the session was reset, and the status names it.
func TestUnnumberedForgedAdvertisement(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrUnnumbered(t))
		s := newServer(t, Options{})
		_, err := s.Set(t.Context(), state([]Session{unnumbered("tor1", "uplink")}, routes("192.0.2.1/32")))
		must(t, err)
		up := func() bool { return s.sessionStatus("tor1").State == Established && r.kernel() != "" }
		within(t, time.Minute, "routes", up)
		before := s.sessionStatus("tor1")
		frame := forgedAdvertisement(t, net.ParseIP("fe80::66"))
		forge := func() {
			r.ns.Do(func() {
				eth0, err := net.InterfaceByName("eth0")
				must(t, err)
				fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
				must(t, err)
				defer unix.Close(fd)
				must(t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Index}))
			})
		}
		forged := netip.MustParseAddr("fe80::66%uplink")
		eventually(t, "the other host in the status",
			func() bool { forge(); return s.sessionStatus("tor1").OtherRouter == forged })
		r.vtysh("-c", "clear bgp *")
		eventually(t, "a reset", func() bool { forge(); return s.sessionStatus("tor1").Since != before.Since })
		within(t, time.Minute, "routes again", func() bool { forge(); return up() })
		if now := s.sessionStatus("tor1"); now.PeerAddress != before.PeerAddress {
			t.Errorf("the session is with %s, and was with %s", now.PeerAddress, before.PeerAddress)
		}
	})
}

// forgedAdvertisement is an Ethernet frame with a router advertisement from another host.
func forgedAdvertisement(t *testing.T, from net.IP) []byte {
	to := net.ParseIP("ff02::1")
	body, err := (&icmp.Message{Type: ipv6.ICMPTypeRouterAdvertisement, Body: &icmp.RawBody{Data: make([]byte, 12)}}).
		Marshal(icmp.IPv6PseudoHeader(from, to))
	must(t, err)
	frame := []byte{0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0x66, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(body)),
		unix.IPPROTO_ICMPV6, 255}
	return slices.Concat(frame, from, to, body)
}

// While there is no router, the status says what it waits for.
func TestUnnumberedWaits(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		node, router := nstest.Node(t), nstest.New(t, "router")
		s := newServer(t, Options{})
		_, err := s.Set(t.Context(), state([]Session{unnumbered("tor1", "uplink")}, routes("192.0.2.1/32")))
		must(t, err)
		says := func(want string) {
			t.Helper()
			eventually(t, want, func() bool { return s.sessionStatus("tor1").LastError == want })
		}
		says("interface uplink is not on this node")
		nstest.Link(t, node, "uplink", router, "eth0")
		says("no router advertisement on uplink yet")
		router.Down("eth0")
		says("interface uplink has no carrier")
		node.Down("uplink")
		says("interface uplink is down")
		node.Sysctl("ipv6.conf.uplink.disable_ipv6", "1")
		node.Up("uplink")
		router.Up("eth0")
		says("interface uplink has no link-local address yet; is IPv6 disabled on it?")
		node.Sysctl("ipv6.conf.uplink.disable_ipv6", "0")
		says("no router advertisement on uplink yet")
		if st := s.sessionStatus("tor1"); st.State == Established || st.Flaps != 0 || st.PeerAddress.IsValid() {
			t.Errorf("status: %+v", st)
		}
	})
}
