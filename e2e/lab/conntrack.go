package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Entered says which node each flow to a VIP's port entered the cluster by: source
// port -> node, by the nodes' conntrack tables.
func (l *Lab) Entered(protocol uint8, to netip.AddrPort) (map[uint16]string, error) {
	by := map[uint16]string{}
	for _, n := range NodeNames {
		flows, err := l.namespaces[n].conntrack(to.Addr())
		if err != nil {
			return nil, err
		}
		for _, f := range flows {
			if f.Forward.Protocol == protocol && f.Forward.DstPort == to.Port() {
				by[f.Forward.SrcPort] = n
			}
		}
	}
	return by, nil
}

// conntrack returns the entries whose original destination is an address.
func (n *Namespace) conntrack(dst netip.Addr) ([]*netlink.ConntrackFlow, error) {
	h, err := netlink.NewHandleAt(n.handle, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	family := netlink.InetFamily(unix.AF_INET)
	if dst.Is6() {
		family = unix.AF_INET6
	}
	flows, err := h.ConntrackTableList(netlink.ConntrackTable, family)
	if err != nil {
		return nil, fmt.Errorf("conntrack of %s: %w", n.Name, err)
	}
	var to []*netlink.ConntrackFlow
	for _, f := range flows {
		if a, _ := netip.AddrFromSlice(f.Forward.DstIP); a.Unmap() == dst {
			to = append(to, f)
		}
	}
	return to, nil
}
