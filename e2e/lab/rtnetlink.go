package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// openRoutes opens a socket for route notifications in the calling thread's namespace.
func openRoutes(stamp func(socket int) error) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	if err := stamp(fd); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	const groups = 1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1)
	return fd, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
}

// routeChange reads a notification. ok is false unless it is about a BGP route to a single
// address.
func routeChange(m syscall.NetlinkMessage) (e routeEvent, ok bool, err error) {
	if m.Header.Type != unix.RTM_NEWROUTE && m.Header.Type != unix.RTM_DELROUTE {
		return e, false, nil
	}
	// struct rtmsg: family, dst_len, src_len, tos, table, protocol, …
	if len(m.Data) < unix.SizeofRtMsg || m.Data[5] != unix.RTPROT_BGP && m.Data[5] != unix.RTPROT_BIRD {
		return e, false, nil
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return e, false, fmt.Errorf("route: %w", err)
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.RTA_DST:
			e.vip, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.RTA_GATEWAY:
			e.via = append(e.via, gateway(ad.Bytes()))
		case unix.RTA_MULTIPATH:
			e.via = append(e.via, gateways(ad.Bytes())...)
		}
	}
	slices.Sort(e.via)
	if m.Header.Type == unix.RTM_DELROUTE {
		e.via = nil
	}
	return e, e.vip.IsValid() && int(m.Data[1]) == e.vip.BitLen(), ad.Err()
}

// gateways reads a list of struct rtnexthop, each with attributes.
func gateways(b []byte) (via []string) {
	for len(b) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtNexthop || length > len(b) {
			break
		}
		if ad, err := netlink.NewAttributeDecoder(b[unix.SizeofRtNexthop:length]); err == nil {
			for ad.Next() {
				if ad.Type() == unix.RTA_GATEWAY {
					via = append(via, gateway(ad.Bytes()))
				}
			}
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return via
}

func gateway(b []byte) string {
	a, _ := netip.AddrFromSlice(b)
	return nodeName(a)
}
