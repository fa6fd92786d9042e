package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dial makes one attempt to connect to the router, and gives up when the next
// one is due: a router that comes back in the middle of the kernel's lengthening
// SYN retransmissions is then reached by a fresh SYN.
func dial(ctx context.Context, s Session, localASN uint32) (*net.TCPConn, error) {
	d := net.Dialer{
		Timeout: max(s.connectTime(), time.Second),
		// BGP has its own keepalives (RFC 4271 §4.4).
		KeepAliveConfig: net.KeepAliveConfig{Enable: false},
		KeepAlive:       -1,
		LocalAddr:       source(s),
		Control:         setTTL(ttl(s, localASN)),
	}
	// Multipath TCP would be tried first otherwise, and has no TCP MD5.
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(s.PeerAddress, s.port()).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

func source(s Session) net.Addr {
	if !s.SourceAddress.IsValid() {
		return nil // a typed nil would be an address
	}
	addr := s.SourceAddress
	if addr.IsLinkLocalUnicast() && addr.Zone() == "" {
		addr = addr.WithZone(s.PeerAddress.Zone())
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0))
}

// ttl of our packets; 0 is the kernel's default. A neighbour in another AS is
// directly connected unless the session says otherwise: packets that would need
// another hop die there, rather than reach a stranger with the same address.
func ttl(s Session, localASN uint32) int {
	switch {
	case s.PeerASN == localASN:
		return 0
	case s.EBGPMultihopTTL != 0:
		return int(s.EBGPMultihopTTL)
	default:
		return 1
	}
}

func setTTL(ttl int) func(network, address string, c syscall.RawConn) error {
	if ttl == 0 {
		return nil
	}
	return func(network, _ string, c syscall.RawConn) error {
		var opterr error
		err := c.Control(func(fd uintptr) {
			if network == "tcp4" {
				opterr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl)
			} else {
				opterr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
			}
		})
		return errors.Join(err, opterr)
	}
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
		return "no answer from " + where
	}
	return err.Error()
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
