package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/linkwatch"
)

// watchAddresses ends sessions from addresses that the node loses, until ctx ends. The kernel keeps
// such a connection, and can receive nothing on it: without this, the router would use a dead next
// hop until the hold time ends.
func (s *Server) watchAddresses(ctx context.Context) {
	changes := make(chan struct{}, 1)
	go linkwatch.Run(ctx, changes, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	var have map[netip.Addr]bool
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
		now, err := nodeAddresses()
		if err != nil {
			s.log.Warn("addresses of this node not read", "err", err)
			continue
		}
		// An address that was on no interface, such as that of a local route, is not lost.
		s.mu.Lock()
		sessions := slices.Clone(s.sessions)
		s.mu.Unlock()
		for _, x := range sessions {
			if w, _ := x.connection(); w != nil && have[plain(w.local())] && !now[plain(w.local())] {
				go w.loseAddress() // it gives the router a moment to read
			}
		}
		have = now
	}
}

// nodeAddresses returns the addresses of all interfaces, without zones.
func nodeAddresses() (map[netip.Addr]bool, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	addrs := make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addrs[plain(p.Addr())] = true
		}
	}
	return addrs, nil
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// loseAddress ends the connection after the node has lost its local address. The NOTIFICATION
// still goes out from that address, so that the router drops the routes at once.
func (w *wire) loseAddress() {
	local := w.local()
	if c, err := w.SyscallConn(); err == nil {
		// Without the right to do this, the write below fails, and the connection is closed without.
		_ = control(c, func(fd int) error { return setTransparent(fd, local.Is4()) })
	}
	w.refuse(fmt.Sprintf("this node no longer has the address %s, from which the session was", local), codeCease,
		ceaseConfiguration)
	_ = w.Close()
}

// setTransparent lets a socket send from an address that is not on this node. It needs
// CAP_NET_ADMIN.
func setTransparent(fd int, is4 bool) error {
	if is4 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1)
}
