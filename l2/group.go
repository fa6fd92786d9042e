package l2

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// groupsPerSocket bounds the groups of one socket: the kernel charges each, some 60 bytes,
// to the socket's option memory, which is 20 KiB on many kernels.
const groupsPerSocket = 256

// groups are the IPv6 multicast groups that this node joins on an interface. The interface
// then accepts their frames, and the kernel reports the membership (MLD, RFC 3810), without
// which snooping switches forward none. The kernel itself ignores the solicitations: their
// targets are not local.
type groups struct {
	index   int
	sockets []groupSocket
	joined  map[netip.Addr]int // index of the socket that joined
}

// A groupSocket only holds memberships.
type groupSocket struct {
	fd    int
	count int
}

// set joins and leaves groups. Call it in the interface's namespace.
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
			// The others would fail in the same way.
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

// socketWithRoom returns a socket that can join one more group.
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
