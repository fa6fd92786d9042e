package radv

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
)

// A linkEnd is this node's end of a link. It is comparable: after a change, earlier
// advertisements may no longer hold.
type linkEnd struct {
	index int
	mac   hwaddr.MAC // zero without one
	local netip.Addr
}

// inspect returns the state of an interface, or why it cannot send or receive.
func inspect(name string) (linkEnd, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return linkEnd{}, fmt.Errorf("interface %s is not on this node", name)
	}
	if err != nil {
		return linkEnd{}, fmt.Errorf("interface %s: %w", name, err)
	}
	// RUNNING is the carrier: an interface that is only UP accepts packets and loses them.
	switch attrs := link.Attrs(); {
	case attrs.RawFlags&unix.IFF_UP == 0:
		return linkEnd{}, fmt.Errorf("interface %s is down", name)
	case attrs.RawFlags&unix.IFF_RUNNING == 0:
		return linkEnd{}, fmt.Errorf("interface %s has no carrier", name)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return linkEnd{}, fmt.Errorf("addresses of interface %s: %w", name, err)
	}
	local := linkLocal(addrs)
	if !local.IsValid() {
		return linkEnd{}, fmt.Errorf("interface %s has no link-local address yet; is IPv6 disabled on it?", name)
	}
	// Links without Ethernet, such as tunnels, have no address of 48 bits, and need none.
	mac, _ := hwaddr.Of(link.Attrs().HardwareAddr)
	return linkEnd{link.Attrs().Index, mac, local.WithZone(name)}, nil
}

// linkLocal is the first usable address: duplicate address detection has passed (RFC 4862
// §5.4).
func linkLocal(addrs []netlink.Addr) netip.Addr {
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && ip.IsLinkLocalUnicast() && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			return ip
		}
	}
	return netip.Addr{}
}
