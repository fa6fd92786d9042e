package speaker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// A gatewayWatch follows the node's default routes, from the first call of current on.
type gatewayWatch struct {
	*netWatch

	mu    sync.Mutex
	known plan.Gateways
	links map[int]bool // interfaces of default routes
}

// newGatewayWatch reads nothing yet: most nodes have no BGPPeer with a default gateway.
func newGatewayWatch(log *slog.Logger) *gatewayWatch {
	g := &gatewayWatch{}
	g.netWatch = newNetWatch("the default gateway", g.refresh, log)
	// The kernel reports no routes that it removes with their interface.
	g.route, g.link = isDefault, g.usesLink
	return g
}

// current returns the default gateways.
func (w *gatewayWatch) current() plan.Gateways {
	w.start()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known
}

// usesLink reports whether a default route uses an interface.
func (w *gatewayWatch) usesLink(l netlink.LinkUpdate) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.links[int(l.Index)]
}

// refresh reads the gateways. It keeps a lost one until there is another: a default route
// may disappear while a DHCP lease is renewed, or while the router has lost its own uplink,
// and neither should end a session.
func (w *gatewayWatch) refresh() {
	ipv4, links4, err4 := defaultGateway(netlink.FAMILY_V4)
	ipv6, links6, err6 := defaultGateway(netlink.FAMILY_V6)
	if err := errors.Join(err4, err6); err != nil {
		w.log.Warn("default gateway not read", "err", err)
	}
	w.mu.Lock()
	was := w.known
	w.known = plan.Gateways{IPv4: cmp.Or(ipv4, was.IPv4), IPv6: cmp.Or(ipv6, was.IPv6)}
	is := w.known
	w.links = map[int]bool{}
	for _, index := range append(links4, links6...) {
		w.links[index] = true
	}
	w.mu.Unlock()
	if is == was {
		return
	}
	w.log.Info("default gateway", "ipv4", is.IPv4, "ipv6", is.IPv6)
	notify.Changed(w.changed)
}

// defaultGateway returns the gateway of the default route with the lowest metric in the
// main table, the lowest address of several, invalid if there is none. It also returns the
// interfaces of all default routes.
func defaultGateway(family int) (best netip.Addr, links []int, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	routes, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	for tries := 0; errors.Is(err, netlink.ErrDumpInterrupted) && tries < 5; tries++ {
		routes, err = netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	}
	if err != nil {
		return netip.Addr{}, nil, fmt.Errorf("routes: %w", err)
	}
	metric := 0
	for _, r := range routes {
		nextHops := r.MultiPath
		if len(nextHops) == 0 {
			nextHops = []*netlink.NexthopInfo{{Gw: r.Gw, LinkIndex: r.LinkIndex, Flags: r.Flags}}
		}
		for _, hop := range nextHops {
			links = append(links, hop.LinkIndex)
			addr := gatewayOf(hop)
			if !addr.IsValid() || best.IsValid() && (r.Priority > metric || r.Priority == metric && best.Less(addr)) {
				continue
			}
			best, metric = addr, r.Priority
		}
	}
	return best, links, nil
}

// gatewayOf returns the gateway of a hop, invalid if it has none or its link is down.
func gatewayOf(hop *netlink.NexthopInfo) netip.Addr {
	addr, ok := netip.AddrFromSlice(hop.Gw)
	if !ok || hop.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0 {
		return netip.Addr{}
	}
	addr = addr.Unmap()
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		link, err := net.InterfaceByIndex(hop.LinkIndex)
		if err != nil {
			return netip.Addr{} // just removed
		}
		addr = addr.WithZone(link.Name)
	}
	return addr
}
