package l2

import (
	"context"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An AsymmetricPath is an interface whose clients behind a router get replies by another
// interface. Many networks accept that; a stateful firewall that sees one direction only
// drops the connections.
type AsymmetricPath struct {
	Interface string `json:"interface"` // that receives the requests
	By        string `json:"by"`        // that sends the replies
	IPv6      bool   `json:"ipv6,omitempty"`
}

// AsymmetricPaths returns them for the interfaces whose subnets have addresses, sorted by
// interface. An interface with a route by a packet mark, as docs/tasks/nodes-on-several-networks.md describes, is
// left out. Before the first Set the result is empty.
func (a *Announcer) AsymmetricPaths(ctx context.Context, addresses []netip.Addr) (found []AsymmetricPath) {
	a.onWorker(ctx, func(w *worker) { found = w.asymmetricPaths(addresses, a.interfaces) })
	return found
}

func (w *worker) asymmetricPaths(addresses []netip.Addr, interfaces []Interface) (found []AsymmetricPath) {
	names := w.names()
	for _, i := range interfaces {
		for _, client := range offLinkClients {
			is4 := client.Is4()
			if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == is4 && i.Has(a) }) {
				continue
			}
			if by := w.egress(client, 0); by != 0 && by != i.Index && !w.hasMarkedRoute(client, i.Index) {
				found = append(found, AsymmetricPath{Interface: i.Name, By: names[by], IPv6: !is4})
			}
		}
	}
	return found
}

// offLinkClients are clients behind a router: addresses for benchmarks (RFC 2544, RFC
// 5180).
var offLinkClients = []netip.Addr{offLinkClient, netip.MustParseAddr("2001:2::1")}

// egress is the interface by which a packet with a mark leaves; 0 without a route.
func (w *worker) egress(to netip.Addr, mark uint32) int {
	routes, err := w.netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark})
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].LinkIndex
}

// hasMarkedRoute reports whether a rule for a packet mark routes by the interface.
func (w *worker) hasMarkedRoute(to netip.Addr, index int) bool {
	family := unix.AF_INET6
	if to.Is4() {
		family = unix.AF_INET
	}
	rules, err := w.netlink.RuleList(family)
	if err != nil {
		return false
	}
	for _, r := range rules {
		if r.Mark != 0 && w.egress(to, r.Mark) == index {
			return true
		}
	}
	return false
}
