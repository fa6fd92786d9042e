package radv

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An end is what matters of this node's end of a link. It can be compared: another
// value means that what was heard before may not hold any more.
type end struct {
	index int
	mac   string // as net.HardwareAddr says it; empty without one
	local netip.Addr
}

// look says what an interface is like now, or why nothing can be sent or heard on it.
func look(name string) (end, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return end{}, fmt.Errorf("interface %s is not on this node", name)
	}
	if err != nil {
		return end{}, fmt.Errorf("interface %s: %w", name, err)
	}
	switch attrs := link.Attrs(); {
	case attrs.RawFlags&unix.IFF_UP == 0:
		return end{}, fmt.Errorf("interface %s is down", name)
	case attrs.RawFlags&unix.IFF_RUNNING == 0:
		return end{}, fmt.Errorf("interface %s has no carrier", name)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return end{}, fmt.Errorf("addresses of interface %s: %w", name, err)
	}
	local := linkLocal(addrs)
	if !local.IsValid() {
		return end{}, fmt.Errorf("interface %s has no link-local address yet; is IPv6 disabled on it?", name)
	}
	return end{link.Attrs().Index, link.Attrs().HardwareAddr.String(), local.WithZone(name)}, nil
}

// linkLocal is the first address that can be used: one that is still looked for on
// other nodes (RFC 4862 §5.4) cannot.
func linkLocal(addrs []netlink.Addr) netip.Addr {
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && ip.IsLinkLocalUnicast() && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			return ip
		}
	}
	return netip.Addr{}
}

func (e end) hardware() net.HardwareAddr {
	mac, err := net.ParseMAC(e.mac)
	if err != nil {
		return nil
	}
	return mac
}
