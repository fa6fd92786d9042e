package speaker

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// The default gateway is that of the best route; it follows routes and interfaces
// that come and go, and stays known when none is left.
func TestGatewayWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Node(t)
		for i := range 2 {
			nstest.Link(t, node, fmt.Sprintf("up%d", i), nstest.New(t, fmt.Sprintf("router%d", i)), "eth0")
			node.Addr(fmt.Sprintf("up%d", i), fmt.Sprintf("10.0.%d.2/24", i))
		}
		g := newGatewayWatch(slog.New(slog.NewTextHandler(t.Output(), nil)))
		t.Cleanup(g.stop)
		if got := g.now(); got != (Gateways{}) {
			t.Errorf("without routes: %v", got)
		}
		change := func(do func(*netlink.Route) error, via, dev string, metric int) {
			t.Helper()
			link, err := netlink.LinkByName(dev)
			if err == nil {
				err = do(&netlink.Route{Gw: netip.MustParseAddr(via).AsSlice(), LinkIndex: link.Attrs().Index, Priority: metric})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		is := func(ipv4, ipv6 string) {
			t.Helper()
			deadline := time.After(time.Minute)
			for {
				got := g.now()
				if fmt.Sprint(got.IPv4, " ", got.IPv6) == ipv4+" "+ipv6 {
					return
				}
				select {
				case <-g.changed:
				case <-deadline:
					t.Fatalf("gateways %s and %s, want %s and %s", got.IPv4, got.IPv6, ipv4, ipv6)
				}
			}
		}
		const none = "invalid IP"
		add, remove := netlink.RouteAdd, netlink.RouteDel
		change(add, "10.0.0.1", "up0", 100)
		is("10.0.0.1", none)
		change(add, "fe80::1", "up0", 100)
		is("10.0.0.1", "fe80::1%up0")
		change(add, "10.0.1.1", "up1", 50)
		is("10.0.1.1", "fe80::1%up0")
		change(add, "fe80::1", "up1", 50)
		is("10.0.1.1", "fe80::1%up1")
		link, err := netlink.LinkByName("up1")
		if err == nil {
			err = netlink.LinkSetDown(link) // of its IPv4 routes the kernel says nothing then
		}
		if err != nil {
			t.Fatal(err)
		}
		is("10.0.0.1", "fe80::1%up0")
		change(remove, "10.0.0.1", "up0", 100)
		change(remove, "fe80::1", "up0", 100)
		change(add, "10.0.0.9", "up0", 10)
		is("10.0.0.9", "fe80::1%up0") // for IPv6 there is no other
	})
}

// A peer that is the default gateway is a session to whatever that is: another
// gateway changes its session and no other, and none is said to be missing.
func TestPeerIsDefaultGateway(t *testing.T) {
	const world = eventWorld + `---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: gw4}
spec: {defaultGateway: IPv4, peerASN: external, myASN: 65001}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: gw6}
spec: {defaultGateway: IPv6, peerASN: 65000, myASN: 65001}
`
	snap := snapshotOf(t, []byte(world))
	decider := NewDecider(Config{Node: "n1"})
	addresses := func() string {
		var all []string
		for _, s := range decider.Decide(snap).BGP.Sessions {
			all = append(all, s.Name+" "+s.PeerAddress.String())
		}
		return strings.Join(all, ", ")
	}
	if got, want := addresses(), "tor1 10.0.0.1, tor2 10.0.0.2"; got != want {
		t.Errorf("without gateways: %s, want %s", got, want)
	}
	problems := decider.last.view.problems()
	if len(problems) != 2 || problems[0].String() != `BGPPeer gw4: spec.defaultGateway "IPv4": node n1 is not known to have such a gateway; give it a default route, or name the router by peerAddress` {
		t.Errorf("problems: %v", problems)
	}
	decider.config.Gateways = Gateways{netip.MustParseAddr("10.0.0.254"), netip.MustParseAddr("fe80::1%eth0")}
	if got, want := addresses(), "gw4 10.0.0.254, gw6 fe80::1%eth0, tor1 10.0.0.1, tor2 10.0.0.2"; got != want {
		t.Errorf("with gateways: %s, want %s", got, want)
	}
	before := decider.last.BGP.Sessions
	decider.config.Gateways.IPv4 = netip.MustParseAddr("10.0.0.253")
	addresses()
	after := decider.last.BGP.Sessions
	changed := slices.DeleteFunc(slices.Clone(after), func(s bgp.Session) bool { return slices.Contains(before, s) })
	if len(changed) != 1 || changed[0].Name != "gw4" || len(decider.last.view.problems()) != 0 {
		t.Errorf("with another gateway these change: %v", changed)
	}
}
