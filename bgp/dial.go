package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dial makes one attempt to connect to the router, and gives up when the next
// one is due: a router that comes back in the middle of the kernel's lengthening
// SYN retransmissions is then reached by a fresh SYN.
func dial(ctx context.Context, s Session) (*net.TCPConn, error) {
	if err := deviceFault(s.Device); err != nil {
		return nil, err
	}
	local, err := source(s)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{
		Timeout: max(s.connectTime(), time.Second),
		// BGP has its own keepalives (RFC 4271 §4.4).
		KeepAliveConfig: net.KeepAliveConfig{Enable: false},
		KeepAlive:       -1,
		LocalAddr:       local,
		Control:         prepare(s),
	}
	// Multipath TCP would be tried first otherwise, and has no TCP MD5.
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(numbered(s.PeerAddress), s.port()).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// source is our end of the connection, nil when the kernel chooses.
func source(s Session) (net.Addr, error) {
	addr := s.SourceAddress
	if s.SourceInterface != "" {
		var err error
		if addr, err = sourceOn(s.SourceInterface, s.PeerAddress); err != nil {
			return nil, err
		}
	}
	if !addr.IsValid() {
		return nil, nil // a typed nil would be an address
	}
	if addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "" {
		addr = addr.WithZone(s.PeerAddress.Zone())
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(numbered(addr), 0)), nil
}

// numbered names the interface of a link-local address by its number. Package net
// remembers for a minute which number a name had, also when another interface has got
// the name.
func numbered(a netip.Addr) netip.Addr {
	if a.Zone() == "" {
		return a
	}
	link, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return a // the caller that uses it reports the error
	}
	return a.WithZone(strconv.Itoa(link.Index))
}

// sourceOn is the address of an interface to connect to peer from. It is looked up
// for each connection: addresses change.
func sourceOn(name string, peer netip.Addr) (netip.Addr, error) {
	prefixes, err := addressesOf(name)
	if err != nil {
		return netip.Addr{}, err
	}
	if best := bestSource(prefixes, peer); best.IsValid() {
		return best, nil
	}
	return netip.Addr{}, fmt.Errorf("source interface %s has no address to reach %s from", name, peer)
}

func addressesOf(name string) ([]netip.Prefix, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("source interface %s is not on this node", name)
	}
	addrs, err := link.Addrs()
	if err != nil {
		return nil, fmt.Errorf("source interface %s: %w", name, err)
	}
	prefixes := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, nil
}

// bestSource prefers an address in the peer's own network. A link-local address
// only reaches link-local addresses.
func bestSource(prefixes []netip.Prefix, peer netip.Addr) (best netip.Addr) {
	for _, p := range prefixes {
		a := p.Addr()
		if a.Is4() != peer.Is4() || a.IsLinkLocalUnicast() != peer.IsLinkLocalUnicast() || a.IsLoopback() != peer.IsLoopback() {
			continue
		}
		if p.Masked().Contains(peer.WithZone("")) {
			return a
		}
		if !best.IsValid() {
			best = a
		}
	}
	return best
}

const maxTTL = 255

// ttl of our packets; 0 is the kernel's default. A neighbour in another AS is
// directly connected unless the session says otherwise: packets that would need
// another hop die there, rather than reach a stranger with the same address.
func ttl(s Session) int {
	switch {
	case s.TTLSecurityHops != 0:
		return maxTTL // RFC 5082 §3: the TTL on arrival gives the distance
	case s.PeerASN == s.LocalASN:
		return 0
	case s.EBGPMultihopTTL != 0:
		return int(s.EBGPMultihopTTL)
	default:
		return 1
	}
}

// leastTTL is what a packet from TTLSecurityHops away arrives with.
func (s Session) leastTTL() int { return maxTTL + 1 - int(s.TTLSecurityHops) }

// prepare sets what must be set before the first packet.
func prepare(s Session) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var opterr error
		err := c.Control(func(fd uintptr) {
			opterr = errors.Join(bindDevice(int(fd), s.Device), setHops(int(fd), s), setPassword(int(fd), s))
		})
		return errors.Join(err, opterr)
	}
}

// setHops sets how far our packets go, and how far the router's may have come: the
// kernel drops the others, the answer to our SYN included.
func setHops(fd int, s Session) error {
	level, hops, least := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT
	if s.PeerAddress.Is4() {
		level, hops, least = unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL
	}
	if n := ttl(s); n != 0 {
		if err := unix.SetsockoptInt(fd, level, hops, n); err != nil {
			return fmt.Errorf("TTL %d: %w", n, err)
		}
	}
	if s.TTLSecurityHops == 0 {
		return nil
	}
	n := s.leastTTL()
	if err := unix.SetsockoptInt(fd, level, least, n); err != nil {
		return fmt.Errorf("least TTL %d: %w", n, err)
	}
	return nil
}

// setPassword has the kernel sign what goes to the router, and drop what comes from
// it without the right signature.
func setPassword(fd int, s Session) error {
	if s.Password == "" {
		return nil
	}
	if err := setSignature(fd, s.PeerAddress, s.Password); err != nil {
		return fmt.Errorf("password (TCP MD5): %w", err)
	}
	return nil
}

// removePassword undoes setPassword, on a socket that listens for several routers.
func removePassword(fd int, s Session) error {
	if s.Password == "" {
		return nil
	}
	if err := setSignature(fd, s.PeerAddress, ""); err != nil {
		return fmt.Errorf("removing a password (TCP MD5): %w", err)
	}
	return nil
}

func setSignature(fd int, peer netip.Addr, password Password) error {
	var sig unix.TCPMD5Sig
	sig.Keylen = uint16(copy(sig.Key[:], password))
	if peer.Is4() {
		a := peer.As4()
		sig.Addr.Family = unix.AF_INET
		copy((*unix.RawSockaddrInet4)(unsafe.Pointer(&sig.Addr)).Addr[:], a[:])
	} else {
		a := peer.As16()
		sig.Addr.Family = unix.AF_INET6
		copy((*unix.RawSockaddrInet6)(unsafe.Pointer(&sig.Addr)).Addr[:], a[:])
	}
	return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig)
}

// bindDevice binds a socket to one device, or to a VRF.
func bindDevice(fd int, device string) error {
	if device == "" {
		return nil
	}
	if err := unix.BindToDevice(fd, device); err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	return nil
}

// deviceFault says that a device is missing, which may change.
func deviceFault(device string) error {
	if device == "" {
		return nil
	}
	if _, err := net.InterfaceByName(device); err != nil {
		return fmt.Errorf("device %s is not on this node", device)
	}
	return nil
}

// dialError says in an operator's words why a router cannot be connected to.
func dialError(s Session, err error) string {
	where := fmt.Sprintf("%s port %d", s.PeerAddress, s.port())
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: nothing listens at " + where
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to host: " + where + " does not answer, or is not directly connected"
	case errors.Is(err, syscall.ENETUNREACH):
		return "network is unreachable: this node has no route to " + s.PeerAddress.String()
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("source address %s is not on this node", s.SourceAddress)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "a firewall on this node refuses connections to " + where
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset by " + where
	case errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return "no answer from " + where + silence(s)
	}
	return err.Error()
}

// silence names the settings of a session that make a router, or this node's kernel, drop
// packets silently.
func silence(s Session) string {
	if s.Password != "" {
		return "; so does a router that has no password for this node, or another one"
	}
	if s.TTLSecurityHops != 0 {
		return fmt.Sprintf("; ttlSecurityHops %d drops packets that have come further or were not sent with TTL 255: does the router have it, too?", s.TTLSecurityHops)
	}
	return ""
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
