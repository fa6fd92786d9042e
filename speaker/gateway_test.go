package speaker

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// The default gateway is that of the best route. It follows routes and interfaces, and the
// last one stays known.
func TestGatewayWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Node(t)
		for i := range 2 {
			nstest.Link(t, node, fmt.Sprintf("up%d", i), nstest.New(t, fmt.Sprintf("router%d", i)), "eth0")
			node.Addr(fmt.Sprintf("up%d", i), fmt.Sprintf("10.0.%d.2/24", i))
		}
		g := newGatewayWatch(slog.New(slog.NewTextHandler(t.Output(), nil)))
		t.Cleanup(g.stop)
		if got := g.current(); got != (plan.Gateways{}) {
			t.Errorf("without routes: %v", got)
		}
		change := func(do func(*netlink.Route) error, via, dev string, metric int) {
			t.Helper()
			link, err := netlink.LinkByName(dev)
			if err == nil {
				err = do(&netlink.Route{
					Gw: netip.MustParseAddr(via).AsSlice(), LinkIndex: link.Attrs().Index, Priority: metric,
				})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		is := func(ipv4, ipv6 string) {
			t.Helper()
			deadline := time.After(time.Minute)
			for {
				got := g.current()
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
			err = netlink.LinkSetDown(link) // without a message for its IPv4 routes
		}
		if err != nil {
			t.Fatal(err)
		}
		is("10.0.0.1", "fe80::1%up0")
		change(remove, "10.0.0.1", "up0", 100)
		change(remove, "fe80::1", "up0", 100)
		change(add, "10.0.0.9", "up0", 10)
		is("10.0.0.9", "fe80::1%up0") // IPv6 has no other
	})
}
