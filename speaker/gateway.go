package speaker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/plan"
)

// newGatewayWatch follows the node's default routes. Most nodes have no BGPPeer with a default gateway,
// and need no watch.
func newGatewayWatch(log *slog.Logger) *netWatch[plan.Gateways] {
	return newNetWatch(func(was plan.Gateways) (plan.Gateways, bool) {
		is := readGateways(was, log)
		if is != was {
			log.Info("default gateway", "ipv4", is.IPv4, "ipv6", is.IPv6)
		}
		return is, is != was
		// The kernel reports no routes that it removes with their interface.
	}, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK)
}

// readGateways keeps a lost gateway until there is another: a default route may disappear while a DHCP
// lease is renewed, or while the router has lost its own uplink, and neither should end a session.
func readGateways(was plan.Gateways, log *slog.Logger) plan.Gateways {
	ipv4, _, err4 := defaultGateway(netlink.FAMILY_V4)
	ipv6, _, err6 := defaultGateway(netlink.FAMILY_V6)
	if err := errors.Join(err4, err6); err != nil {
		log.Warn("default gateway not read", "err", err)
	}
	return plan.Gateways{IPv4: cmp.Or(ipv4, was.IPv4), IPv6: cmp.Or(ipv6, was.IPv6)}
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
