package observer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
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

// routeChange reads a notification. ok is false unless it is about a BGP route. The event has
// no address if the route is to several; they are in prefix.
func (c Config) routeChange(m syscall.NetlinkMessage) (e routeEvent, prefix netip.Prefix, ok bool, err error) {
	if m.Header.Type != unix.RTM_NEWROUTE && m.Header.Type != unix.RTM_DELROUTE {
		return e, prefix, false, nil
	}
	// struct rtmsg: family, dst_len, src_len, tos, table, protocol, …
	if len(m.Data) < unix.SizeofRtMsg || m.Data[5] != unix.RTPROT_BGP && m.Data[5] != unix.RTPROT_BIRD {
		return e, prefix, false, nil
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return e, prefix, false, fmt.Errorf("route: %w", err)
	}
	var to netip.Addr
	var link int
	var gateway net.IP
	for ad.Next() {
		switch ad.Type() {
		case unix.RTA_DST:
			to, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.RTA_GATEWAY:
			gateway = ad.Bytes()
		case unix.RTA_OIF:
			link = int(ad.Int32())
		case unix.RTA_MULTIPATH:
			e.via = append(e.via, c.readNextHops(ad.Bytes())...)
		}
	}
	if e.via == nil {
		e.via = []string{c.NextHop(link, gateway)}
	}
	slices.Sort(e.via)
	if m.Header.Type == unix.RTM_DELROUTE {
		e.via = nil
	}
	if prefix = netip.PrefixFrom(to, int(m.Data[1])); prefix.IsSingleIP() {
		e.vip = to
	}
	return e, prefix, prefix.IsValid(), ad.Err()
}

// readNextHops reads a list of struct rtnexthop, each with attributes.
func (c Config) readNextHops(b []byte) (via []string) {
	for len(b) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtNexthop || length > len(b) {
			break
		}
		link := int(binary.NativeEndian.Uint32(b[4:]))
		var gateway net.IP
		if ad, err := netlink.NewAttributeDecoder(b[unix.SizeofRtNexthop:length]); err == nil {
			for ad.Next() {
				if ad.Type() == unix.RTA_GATEWAY {
					gateway = ad.Bytes()
				}
			}
		}
		via = append(via, c.NextHop(link, gateway))
		b = b[min(len(b), (length+3)&^3):]
	}
	return via
}
