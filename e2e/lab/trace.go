package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A keptSocket stays open after a failed connect, so that the error can name the port that
// the kernel chose. Package net closes its own socket and leaves the port out.
type keptSocket struct {
	fd   int
	open bool
}

func (k *keptSocket) keep(c syscall.RawConn) (err error) {
	control := c.Control(func(fd uintptr) { k.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	k.open = control == nil && err == nil
	return errors.Join(control, err)
}

func (k *keptSocket) close() {
	if k.open {
		_ = unix.Close(k.fd) // nothing was written
	}
}

// withLocalAddr adds the local address to an error of connecting by TCP.
func (k *keptSocket) withLocalAddr(err error) error {
	var op *net.OpError
	if !k.open || !errors.As(err, &op) || op.Net != "tcp" || op.Source != nil {
		return err
	}
	if local := k.local(); local.Port() != 0 { // otherwise the kernel had not chosen a port
		op.Source = net.TCPAddrFromAddrPort(local)
	}
	return err
}

// local returns the address of the socket, or the zero value if it has none.
func (k *keptSocket) local() netip.AddrPort {
	sa, err := unix.Getsockname(k.fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	default:
		return netip.AddrPort{}
	}
}

// clientIn returns a client in one of the lab's namespaces.
func (l *Lab) clientIn(name string) *Client {
	c := &Client{Namespace: l.namespaces[name]}
	for _, n := range NodeNames {
		c.nodes = append(c.nodes, l.namespaces[n])
	}
	return c
}

// withConntrack adds each node's conntrack entry of the connection, or of the datagram, to the error
// of a lost request. The entry shows the ingress node, the backend, and whether it has answered.
func (c *Client) withConntrack(ctx context.Context, err error, to netip.AddrPort) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Source == nil {
		return err
	}
	from, e := netip.ParseAddrPort(op.Source.String())
	if e != nil {
		return err
	}
	protocol := strings.TrimRight(op.Net, "46")
	for _, n := range c.nodes {
		out, e := n.Run(ctx, "conntrack", "--dump", "--proto", protocol, "--orig-dst", to.Addr().String(),
			"--orig-port-src", strconv.Itoa(int(from.Port())))
		var entries []string
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, protocol) {
				entries = append(entries, strings.Join(strings.Fields(line), " "))
			}
		}
		switch {
		case e != nil:
			err = fmt.Errorf("%w; %v", err, e)
		case len(entries) == 0:
			err = fmt.Errorf("%w; %s has no entry", err, n.Name)
		default:
			err = fmt.Errorf("%w; %s has %s", err, n.Name, strings.Join(entries, ", "))
		}
	}
	return err
}
