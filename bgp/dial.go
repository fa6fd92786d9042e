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

// dial makes one attempt to connect to the router, and gives up when the next attempt is due. The
// kernel's SYN retransmissions become rarer; a fresh SYN reaches a router sooner that has come
// back.
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
		Control: prepare(func(fd int) error {
			return errors.Join(bindDevice(fd, s.Device), setHops(fd, s), setPassword(fd, s))
		}),
	}
	// Otherwise Go tries Multipath TCP first, which has no TCP MD5.
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(numbered(s.PeerAddress), s.port()).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// prepare returns the control function of a dialer or listener. It calls set before the socket's
// first packet.
func prepare(set func(fd int) error) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error { return control(c, set) }
}

// control calls set with the file descriptor of c.
func control(c syscall.RawConn, set func(fd int) error) (err error) {
	failed := c.Control(func(fd uintptr) { err = set(int(fd)) })
	return errors.Join(failed, err)
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

// deviceFault is the error for a missing device, which may appear later.
func deviceFault(device string) error {
	if device == "" {
		return nil
	}
	if _, err := net.InterfaceByName(device); err != nil {
		return fmt.Errorf("device %s is not on this node", device)
	}
	return nil
}

// dialError explains to an operator why the connection failed.
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

// silence names the settings of a session that can make a router, or this node's kernel, drop
// packets silently.
func silence(s Session) string {
	if s.Password != "" {
		return "; so does a router that has no password for this node, or another one"
	}
	if s.TTLSecurityHops != 0 {
		return fmt.Sprintf("; ttlSecurityHops %d drops packets that have come further or were not sent with TTL 255: "+
			"does the router have it, too?", s.TTLSecurityHops)
	}
	return ""
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
