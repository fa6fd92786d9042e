package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Two top-of-rack routers between the node and a spine, each an AS of its own.
const (
	frrToRConfig = `
hostname tor%[1]d
router bgp 6500%[1]d
 bgp router-id 10.255.0.%[1]d
 no bgp ebgp-requires-policy
 neighbor 10.0.%[1]d.2 remote-as 65010
 neighbor 10.0.%[1]d.2 timers connect 1
 neighbor 10.1.%[1]d.1 remote-as 65100
 neighbor 10.1.%[1]d.1 timers connect 1
`
	frrSpineConfig = `
hostname spine
router bgp 65100
 bgp router-id 10.255.0.9
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor 10.1.1.2 remote-as 65001
 neighbor 10.1.1.2 timers connect 1
 neighbor 10.1.2.2 remote-as 65002
 neighbor 10.1.2.2 timers connect 1
 address-family ipv4 unicast
  network 203.0.113.1/32
`
)

// A fabric is a node with two uplinks, and a spine that has a client's address.
type fabric struct {
	node  *nstest.NS
	tors  [2]*frr
	spine *frr
}

func startFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{node: nstest.Node(t), spine: newFRR(t, "spine", frrSpineConfig)}
	f.spine.ns.Addr("lo", "203.0.113.1/32")
	f.spine.ns.Sysctl("ipv4.fib_multipath_hash_policy", "1") // ports as well
	for i := range f.tors {
		n := i + 1
		tor := newFRR(t, fmt.Sprintf("tor%d", n), fmt.Sprintf(frrToRConfig, n))
		uplink, down := fmt.Sprintf("uplink%d", n), fmt.Sprintf("tor%d", n)
		nstest.Link(t, f.node, uplink, tor.ns, "eth0")
		nstest.Link(t, f.spine.ns, down, tor.ns, "eth1")
		f.node.Addr(uplink, fmt.Sprintf("10.0.%d.2/24", n))
		tor.ns.Addr("eth0", fmt.Sprintf("10.0.%d.1/24", n))
		tor.ns.Addr("eth1", fmt.Sprintf("10.1.%d.2/24", n))
		f.spine.ns.Addr(down, fmt.Sprintf("10.1.%d.1/24", n))
		f.node.Sysctl("ipv4.conf."+uplink+".rp_filter", "0") // answers may leave by the other one
		tor.run()
		f.tors[i] = tor
	}
	f.spine.run()
	// The answers' way is not what this is about: tor2 has it, whatever becomes of tor1.
	f.node.Route("203.0.113.1/32", "10.0.2.1", "uplink2")
	return f
}

// state announces the VIP to both.
func (f *fabric) state() State {
	var sessions []Session
	for i := range f.tors {
		sessions = append(sessions, Session{
			Name: fmt.Sprintf("tor%d", i+1), PeerAddress: netip.MustParseAddr(fmt.Sprintf("10.0.%d.1", i+1)),
			PeerASN:  uint32(65001 + i),
			HoldTime: 9 * time.Second, ConnectTime: 100 * time.Millisecond, GracefulRestart: true,
		})
	}
	return state(sessions, routes("192.0.2.1/32"))
}

func (r *frr) hops(prefix string) string {
	r.t.Helper()
	return kernelOf{r.t, r.ns}.hops(prefix)
}

// A kernelOf is the routing table of a router, of either family.
type kernelOf struct {
	t  *testing.T
	ns *nstest.NS
}

// hops are the next hops of a route, sorted; empty if there is none.
func (k kernelOf) hops(prefix string) string {
	k.t.Helper()
	var hops []string
	add := func(gw net.IP) {
		if gw != nil {
			hops = append(hops, gw.String())
		}
	}
	k.ns.Do(func() {
		ip, dst, err := net.ParseCIDR(prefix)
		must(k.t, err)
		family := netlink.FAMILY_V4
		if ip.To4() == nil {
			family = netlink.FAMILY_V6
		}
		found, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
		must(k.t, err)
		for _, route := range found {
			add(route.Gw)
			for _, h := range route.MultiPath {
				add(h.Gw)
			}
		}
	})
	slices.Sort(hops)
	return strings.Join(hops, " ")
}

// connect makes so many connections from the spine to the VIP, and returns how many
// packets each uplink of the node received meanwhile.
func (f *fabric) connect(t *testing.T, n int) (by [2]uint64) {
	t.Helper()
	before := f.received(t)
	f.spine.ns.Do(func() {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 1)}}
		for range n {
			c, err := d.DialContext(t.Context(), "tcp", "192.0.2.1:80")
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		}
	})
	for i, now := range f.received(t) {
		by[i] = now - before[i]
	}
	return by
}

func (f *fabric) received(t *testing.T) (by [2]uint64) {
	t.Helper()
	f.node.Do(func() {
		for i := range by {
			l, err := netlink.LinkByName(fmt.Sprintf("uplink%d", i+1))
			must(t, err)
			by[i] = l.Attrs().Statistics.RxPackets
		}
	})
	return by
}

// Two ToRs share what a spine sends to a VIP. One that loses its link takes none with
// it, and is back with the link.
func TestFRRTwoToRs(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		f := startFabric(t)
		f.node.Addr("lo", "192.0.2.1/32")
		listener, err := net.Listen("tcp", "192.0.2.1:80")
		must(t, err)
		defer listener.Close()
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		s := newServer(t, Options{})
		_, err = s.Set(t.Context(), f.state())
		must(t, err)

		const vip, both, second = "192.0.2.1/32", "10.1.1.2 10.1.2.2", "10.1.2.2"
		eventually(t, "both next hops", func() bool { return f.spine.hops(vip) == both })
		if by := f.connect(t, 60); by[0] < 60 || by[1] < 60 {
			t.Errorf("packets by uplink: %d; want at least 3 of each of some connections by both", by)
		}
		setLink(t, f.node, "uplink1", false)
		took := within(t, time.Minute, "tor2 alone", func() bool { return f.spine.hops(vip) == second })
		t.Logf("tor1's link is down: the spine uses tor2 alone after %s", took.Round(time.Millisecond))
		f.connect(t, 20)
		setLink(t, f.node, "uplink1", true)
		eventually(t, "both next hops again", func() bool { return f.spine.hops(vip) == both })
		f.connect(t, 20)

		_, err = s.Set(t.Context(), state(f.state().Sessions, nil))
		must(t, err)
		eventually(t, "no route", func() bool { return f.spine.hops(vip) == "" })
	})
}

func setLink(t *testing.T, ns *nstest.NS, name string, up bool) {
	t.Helper()
	ns.Do(func() {
		l, err := netlink.LinkByName(name)
		must(t, err)
		set := netlink.LinkSetDown
		if up {
			set = netlink.LinkSetUp
		}
		must(t, set(l))
	})
}

const (
	frrReflectorConfig = `
hostname reflector
router bgp 65010
 bgp router-id 10.255.0.1
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.2 timers connect 1
 neighbor 10.1.0.2 remote-as 65010
 neighbor 10.1.0.2 timers connect 1
 address-family ipv4 unicast
  neighbor 10.0.0.2 route-reflector-client
  neighbor 10.1.0.2 route-reflector-client
`
	frrEdgeConfig = `
hostname edge
router bgp 65010
 bgp router-id 10.255.0.2
 neighbor 10.1.0.1 remote-as 65010
 neighbor 10.1.0.1 timers connect 1
`
)

// A route reflector (RFC 4456) passes our routes on as they are: to another router of
// the AS the node is the next hop, and the preference that it received still counts.
func TestFRRRouteReflector(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		edge := newFRR(t, "edge", frrEdgeConfig)
		reflector := newFRR(t, "reflector", frrReflectorConfig)
		node := nstest.Node(t)
		nstest.Link(t, node, "uplink", reflector.ns, "eth0")
		nstest.Link(t, edge.ns, "eth0", reflector.ns, "eth1")
		node.Addr("uplink", "10.0.0.2/24")
		reflector.ns.Addr("eth0", "10.0.0.1/24")
		reflector.ns.Addr("eth1", "10.1.0.1/24")
		edge.ns.Addr("eth0", "10.1.0.2/24")
		edge.ns.Route("10.0.0.0/24", "10.1.0.1", "eth0") // an IGP's
		reflector.run()
		edge.run()

		s := newServer(t, Options{})
		conf := frrSession("10.0.0.2")
		conf.LocalASN, conf.PeerASN = 65010, 65010
		want := state([]Session{conf}, told(ForAll(Attributes{LocalPref: MetricOf(250),
			Communities: CommunitiesOf(64500<<16 | 7)}), routes("192.0.2.1/32")...))
		_, err := s.Set(t.Context(), want)
		must(t, err)
		const vip = "192.0.2.1/32"
		eventually(t, "the route by the reflector", func() bool { return edge.hops(vip) == "10.1.0.1" })
		out := edge.vtysh("-c", "show bgp ipv4 unicast "+vip)
		for _, words := range []string{"10.0.0.2 from 10.1.0.1", "localpref 250",
			"Originator: " + want.RouterID.String(), "Cluster list: 10.255.0.1", "Community: 64500:7"} {
			if !strings.Contains(out, words) {
				t.Errorf("no %q in what the edge says:\n%s", words, out)
			}
		}
		if out := reflector.vtysh("-c", "show bgp ipv4 unicast "+vip); !strings.Contains(out,
			"Received from a RR-client") {
			t.Errorf("the reflector says:\n%s", out)
		}
		_, err = s.Set(t.Context(), state([]Session{conf}, nil))
		must(t, err)
		eventually(t, "no route", func() bool { return edge.hops(vip) == "" })
	})
}
