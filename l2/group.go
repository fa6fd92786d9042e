package l2

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

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
	joined  map[group]int // index of the socket that joined
}

// A group is a solicited-node multicast group, by the last 24 bits of its members (RFC 4291 §2.7.1).
type group uint32

// groupsOf returns the groups of addresses, sorted and unique.
func groupsOf(addresses []netip.Addr) []group {
	all := make([]group, len(addresses))
	for i, a := range addresses {
		all[i] = group(number(a) & (1<<24 - 1))
	}
	slices.Sort(all) // fast for addresses that are sorted, in one subnet
	return slices.Compact(all)
}

func (g group) addr() netip.Addr {
	return solicitedNode(netip.AddrFrom16([16]byte{13: byte(g >> 16), 14: byte(g >> 8), 15: byte(g)}))
}

func (g group) String() string { return g.addr().String() }

// A groupSocket only holds memberships.
type groupSocket struct {
	fd    int
	count int
}

// set leaves the groups that are not in want, which is sorted, then joins the others. Call it in the
// interface's namespace.
func (g *groups) set(want []group) error {
	var errs []error
	for x, s := range g.joined {
		if _, stays := slices.BinarySearch(want, x); stays {
			continue
		}
		if err := g.change(unix.IPV6_LEAVE_GROUP, s, x); err != nil {
			errs = append(errs, fmt.Errorf("leave %s: %w", x, err))
		}
		delete(g.joined, x)
		g.sockets[s].count--
	}
	for _, x := range want {
		if _, is := g.joined[x]; is {
			continue
		}
		if err := g.join(x); err != nil {
			// The others would fail in the same way.
			return errors.Join(append(errs, fmt.Errorf("join %s: %w", x, err))...)
		}
	}
	return errors.Join(errs...)
}

func (g *groups) join(x group) error {
	s, err := g.socketWithRoom()
	if err != nil {
		return err
	}
	if err := g.change(unix.IPV6_JOIN_GROUP, s, x); err != nil {
		return err
	}
	if g.joined == nil {
		g.joined = make(map[group]int)
	}
	g.joined[x] = s
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

func (g *groups) change(option, s int, x group) error {
	return unix.SetsockoptIPv6Mreq(g.sockets[s].fd, unix.IPPROTO_IPV6, option,
		&unix.IPv6Mreq{Multiaddr: x.addr().As16(), Interface: uint32(g.index)})
}

// close leaves all groups.
func (g *groups) close() {
	for _, s := range g.sockets {
		unix.Close(s.fd)
	}
	*g = groups{index: g.index}
}
