package l2

import (
	"context"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Detour is that what pods answer to clients behind a router leaves the node by another
// interface than the clients come by. Many networks do not mind; a firewall that sees one
// direction only does.
type Detour struct {
	Interface string `json:"interface"` // that clients come by
	By        string `json:"by"`        // that answers leave by
	IPv6      bool   `json:"ipv6,omitempty"`
}

// Detours find out by which interfaces answers leave, for those that addresses belong on,
// sorted by interface. Who has marked packets take another table, as docs/layer2.md has it, so
// that one of the marks leads back, has seen to it. There are none before the first Set.
func (a *Announcer) Detours(ctx context.Context, addresses []netip.Addr) (found []Detour) {
	a.setting.Lock()
	k := a.keeper
	a.setting.Unlock()
	if k == nil {
		return nil
	}
	_ = k.do(ctx, func() { found = k.detours(addresses, a.interfaces) })
	return found
}

func (k *keeper) detours(addresses []netip.Addr, interfaces []Interface) (found []Detour) {
	names := k.names()
	for _, i := range interfaces {
		for _, client := range strangers {
			is4 := client.Is4()
			if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == is4 && i.Has(a) }) {
				continue
			}
			if by := k.leaves(client, 0); by != 0 && by != i.Index && !k.marked(client, i.Index) {
				found = append(found, Detour{Interface: i.Name, By: names[by], IPv6: !is4})
			}
		}
	}
	return found
}

// strangers are clients that are on no link: nobody has addresses for benchmarks (RFC 2544,
// RFC 5180).
var strangers = []netip.Addr{elsewhere, netip.MustParseAddr("2001:2::1")}

// leaves is the interface by which a marked packet leaves, 0 if there is no route.
func (k *keeper) leaves(to netip.Addr, mark uint32) int {
	routes, err := k.netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark})
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].LinkIndex
}

// marked says whether a rule about marks has packets leave by an interface.
func (k *keeper) marked(to netip.Addr, index int) bool {
	family := unix.AF_INET6
	if to.Is4() {
		family = unix.AF_INET
	}
	rules, err := k.netlink.RuleList(family)
	if err != nil {
		return false
	}
	for _, r := range rules {
		if r.Mark != 0 && k.leaves(to, r.Mark) == index {
			return true
		}
	}
	return false
}
