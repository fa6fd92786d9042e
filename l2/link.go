package l2

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
)

// listAttempts bounds how often the interfaces are listed again because they changed during
// a listing.
const listAttempts = 5

// ListInterfaces returns the interfaces of the calling thread's network namespace that can
// answer for addresses, sorted by name; never nil. It changes nothing.
func ListInterfaces() ([]Interface, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	list, _, err := listInterfaces(h)
	return slices.Grow(list, 1), err
}

// listInterfaces returns the usable interfaces, sorted by name, and the hardware addresses
// of all.
func listInterfaces(h *netlink.Handle) (usable []Interface, own map[MAC]bool, err error) {
	for range listAttempts {
		var links []netlink.Link
		var addrs []netlink.Addr
		if links, err = h.LinkList(); err == nil {
			addrs, err = h.AddrList(nil, netlink.FAMILY_ALL)
		}
		if err == nil {
			usable, own = interfaces(links, addrs)
			return usable, own, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, nil, fmt.Errorf("interfaces: %w", err)
}

// interfaces selects the usable interfaces from the kernel's lists.
func interfaces(links []netlink.Link, addrs []netlink.Addr) (usable []Interface, own map[MAC]bool) {
	own = make(map[MAC]bool)
	kinds := make(map[int]string)
	for _, l := range links {
		kinds[l.Attrs().Index] = l.Type()
	}
	prefixes, ipv6 := make(map[int][]netip.Prefix), make(map[int]bool)
	addresses := make(map[int][]netip.Addr)
	for _, a := range addrs {
		p, ok := prefixOf(a)
		if ok && !p.Addr().IsLinkLocalUnicast() && !p.IsSingleIP() {
			prefixes[a.LinkIndex] = append(prefixes[a.LinkIndex], p)
			if a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 || p.Addr().Is4() {
				ip, _ := netip.AddrFromSlice(a.IP)
				addresses[a.LinkIndex] = append(addresses[a.LinkIndex], ip.Unmap())
			}
		}
		if ok && p.Addr().Is6() {
			ipv6[a.LinkIndex] = true
		}
	}
	for _, l := range links {
		attrs := l.Attrs()
		mac, ok := hwaddr.Of(attrs.HardwareAddr)
		if !ok || !mac.Unicast() {
			continue
		}
		own[mac] = true
		if answers(attrs, kinds[attrs.MasterIndex]) {
			i := Interface{
				Name: attrs.Name, Index: attrs.Index, MAC: mac, Prefixes: prefixes[attrs.Index],
				IPv6: ipv6[attrs.Index],
			}
			slices.SortFunc(i.Prefixes, netip.Prefix.Compare)
			i.Prefixes = slices.Compact(i.Prefixes)
			i.Addrs = onePerPrefix(addresses[attrs.Index], i.Prefixes)
			usable = append(usable, i)
		}
	}
	slices.SortFunc(usable, func(i, j Interface) int { return strings.Compare(i.Name, j.Name) })
	return usable, own
}

// onePerPrefix returns the lowest address in each prefix.
func onePerPrefix(all []netip.Addr, prefixes []netip.Prefix) (some []netip.Addr) {
	slices.SortFunc(all, netip.Addr.Compare)
	for _, p := range prefixes {
		if i := slices.IndexFunc(all, p.Contains); i >= 0 {
			some = append(some, all[i])
		}
	}
	slices.SortFunc(some, netip.Addr.Compare)
	return slices.Compact(some)
}

// answers reports whether a link can answer. A port of a bridge or a bond is part of its
// master, which has the addresses. A VRF is different: only routes belong to it.
func answers(attrs *netlink.LinkAttrs, master string) bool {
	const (
		needs   = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_BROADCAST
		forbids = unix.IFF_LOOPBACK | unix.IFF_POINTOPOINT | unix.IFF_NOARP // dummies have NOARP
	)
	return attrs.EncapType == "ether" && attrs.RawFlags&needs == needs && attrs.RawFlags&forbids == 0 &&
		(attrs.MasterIndex == 0 || master == "vrf")
}

// prefixOf is the subnet of an interface address, masked.
func prefixOf(a netlink.Addr) (netip.Prefix, bool) {
	if a.IPNet == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	bits, size := a.Mask.Size()
	if ip = ip.Unmap(); !ok || size != ip.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(ip, bits).Masked(), true
}
