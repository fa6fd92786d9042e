package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A connection is a client's connection as the ingress node translates it. The client's
// port alone does not identify it: another node may still have an entry of an earlier
// connection from that port.
type connection struct {
	client uint16 // the client's port
	pod    netip.Addr
	source netip.AddrPort // the client, as the pod sees it
}

// ingressNodes returns the ingress node of each connection to a VIP's port, from the nodes'
// conntrack tables.
func (l *Lab) ingressNodes(protocol uint8, to netip.AddrPort) (map[connection]string, error) {
	by := map[connection]string{}
	for _, n := range NodeNames {
		flows, err := l.namespaces[n].conntrack(to.Addr())
		if err != nil {
			return nil, err
		}
		for _, f := range flows {
			if f.Forward.Protocol == protocol && f.Forward.DstPort == to.Port() {
				pod, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
				source, _ := netip.AddrFromSlice(f.Reverse.DstIP)
				by[connection{f.Forward.SrcPort, pod.Unmap(),
					netip.AddrPortFrom(source.Unmap(), f.Reverse.DstPort)}] = n
			}
		}
	}
	return by, nil
}

// conntrack returns the entries with the given original destination.
func (n *Namespace) conntrack(dst netip.Addr) ([]*netlink.ConntrackFlow, error) {
	h, err := netlink.NewHandleAt(n.handle, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	flows, err := h.ConntrackTableList(netlink.ConntrackTable, inetFamily(dst))
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

// DeleteConntrack deletes the entries with the given original destination. Entries that
// expire meanwhile are no error, unlike with the conntrack program.
func (n *Namespace) DeleteConntrack(dst netip.Addr) error {
	h, err := netlink.NewHandleAt(n.handle, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	var to netlink.ConntrackFilter
	if err := to.AddIP(netlink.ConntrackOrigDstIP, dst.AsSlice()); err != nil {
		return err
	}
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, inetFamily(dst), &to); err != nil {
		return fmt.Errorf("conntrack of %s to %s: %w", n.Name, dst, err)
	}
	return nil
}

func inetFamily(a netip.Addr) netlink.InetFamily {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// flushConntrack deletes all entries, as a reboot does.
func (n *Namespace) flushConntrack() error {
	h, err := netlink.NewHandleAt(n.handle, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("conntrack of %s: %w", n.Name, err)
	}
	return nil
}
