package l2

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// groupsPerSocket bounds what one socket joins: the kernel accounts each, with some 60
// bytes, to the socket's option memory, which is 20 KiB on many kernels.
const groupsPerSocket = 256

// groups are the IPv6 groups that an interface is in for us. Being in one makes the
// interface take its frames, and the kernel report it (MLD, RFC 3810), without which
// switches that listen to that send none. The kernel itself finds nothing to do in the
// solicitations it gets so: their targets are not its own.
type groups struct {
	index   int
	sockets []groupSocket
	joined  map[netip.Addr]int // the socket that did
}

// A groupSocket is only there to be in groups.
type groupSocket struct {
	fd    int
	count int
}

// set joins and leaves. It is to be called in the interface's namespace.
func (g *groups) set(want map[netip.Addr]bool) error {
	var errs []error
	for group, s := range g.joined {
		if want[group] {
			continue
		}
		if err := g.change(unix.IPV6_LEAVE_GROUP, s, group); err != nil {
			errs = append(errs, fmt.Errorf("leave %s: %w", group, err))
		}
		delete(g.joined, group)
		g.sockets[s].count--
	}
	for group := range want {
		if _, ok := g.joined[group]; ok {
			continue
		}
		if err := g.join(group); err != nil {
			// The others fail in the same way, thousandfold perhaps.
			return errors.Join(append(errs, fmt.Errorf("join %s: %w", group, err))...)
		}
	}
	return errors.Join(errs...)
}

func (g *groups) join(group netip.Addr) error {
	s, err := g.socketWithRoom()
	if err != nil {
		return err
	}
	if err := g.change(unix.IPV6_JOIN_GROUP, s, group); err != nil {
		return err
	}
	if g.joined == nil {
		g.joined = make(map[netip.Addr]int)
	}
	g.joined[group] = s
	g.sockets[s].count++
	return nil
}

// room is a socket with room for one more.
func (g *groups) socketWithRoom() (int, error) {
	for i, s := range g.sockets {
		if s.count < groupsPerSocket {
			return i, nil
		}
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	g.sockets = append(g.sockets, groupSocket{fd: fd})
	return len(g.sockets) - 1, nil
}

func (g *groups) change(option, s int, group netip.Addr) error {
	return unix.SetsockoptIPv6Mreq(g.sockets[s].fd, unix.IPPROTO_IPV6, option, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(g.index)})
}

// close leaves all groups.
func (g *groups) close() {
	for _, s := range g.sockets {
		unix.Close(s.fd)
	}
	*g = groups{index: g.index}
}
