package proxytest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Serve answers on an address, over TCP, UDP and SCTP, with the name of the
// namespace and the address that the client has for it.
func (l *Lab) Serve(ns *nstest.NS, on netip.AddrPort) {
	l.T.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	var err error
	ns.Do(func() {
		tcp, err = net.Listen("tcp", on.String())
		if err == nil {
			udp, err = net.ListenPacket("udp", on.String())
		}
	})
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { tcp.Close(); udp.Close() })
	l.serveSCTP(ns, on)
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go answer(c, ns.Name)
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if what := string(buf[:n]); what != "who?" {
				l.Heard.Store(what, true)
			}
			fmt.Fprintf(writerTo{udp, from}, "%s saw %s", ns.Name, from)
		}
	}()
}

// answer answers each thing that is said, for as long as the client stays.
func answer(c net.Conn, name string) {
	defer c.Close()
	buf := make([]byte, 64)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		fmt.Fprintf(c, "%s saw %s", name, c.RemoteAddr())
	}
}

type writerTo struct {
	conn net.PacketConn
	to   net.Addr
}

func (w writerTo) Write(b []byte) (int, error) { return w.conn.WriteTo(b, w.to) }

// Unresent is any answer, if it comes of the first packet: no second SYN has hidden
// that the first one was lost.
const Unresent = "an answer to the first packet"

// Patience is how long to wait for what should come.
func Patience(want string) time.Duration {
	switch want {
	case "silence":
		return 150 * time.Millisecond
	case Unresent:
		return 900 * time.Millisecond // the kernel resends a SYN after a second, RFC 6298 section 2
	default:
		return 3 * time.Second
	}
}

// Probe sends from a namespace to an address and says what comes of it: "pod1
// saw client", "refused" or "silence". How long it waits depends on what is
// wanted.
func (l *Lab) Probe(from *nstest.NS, network string, to netip.AddrPort, want string) string {
	l.T.Helper()
	return l.ProbeFrom(from, network, 0, to, want)
}

// ports makes each question a flow of its own. For datagrams the kernel may well choose a
// port again; conntrack knows its flow still, and no rule is asked.
var ports atomic.Uint32

// FreshPort is below the ports that the kernel chooses.
func FreshPort() int { return 24000 + int(ports.Add(1)%8000) }

// ProbeFrom is probe with a source port.
func (l *Lab) ProbeFrom(from *nstest.NS, network string, port int, to netip.AddrPort, want string) string {
	l.T.Helper()
	if port == 0 && network != "tcp" {
		port = FreshPort()
	}
	if network == "sctp" {
		return l.associate(from, uint16(port), to, want)
	}
	var c net.Conn
	var err error
	from.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience(want))
		defer cancel()
		c, err = Dialer(network, port).DialContext(ctx, network, to.String())
	})
	if err != nil {
		return Outcome(err)
	}
	defer c.Close()
	return l.AskFor(c, want)
}

// Dialer returns a dialer with a local port, or with any free one if port is 0.
func Dialer(network string, port int) *net.Dialer {
	d := &net.Dialer{}
	switch {
	case port == 0:
		return d // with SO_REUSEADDR the kernel may choose a port that an open UDP socket has
	case network == "tcp":
		d.LocalAddr = &net.TCPAddr{Port: port}
	default:
		d.LocalAddr = &net.UDPAddr{Port: port}
	}
	// The same port serves again at once.
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
		})
	}
	return d
}

// Ask sends a line over a connection, and returns which pod answered and which client it saw.
func (l *Lab) Ask(c net.Conn) string { return l.AskFor(c, "") }

func (l *Lab) AskFor(c net.Conn, want string) string {
	_ = c.SetDeadline(time.Now().Add(Patience(want)))
	if _, err := c.Write([]byte("who?")); err != nil {
		return Outcome(err)
	}
	buf := make([]byte, 128)
	n, err := c.Read(buf)
	if err != nil {
		return Outcome(err)
	}
	return l.Named(string(buf[:n]))
}

// Named puts a name for the address in an answer.
func (l *Lab) Named(answer string) string {
	who, source, _ := strings.Cut(answer, " saw ")
	a, err := netip.ParseAddrPort(source)
	if err != nil {
		return answer
	}
	name, ok := l.Names[a.Addr().Unmap()]
	if !ok {
		name = a.Addr().String()
	}
	return who + " saw " + name
}

func Outcome(err error) string {
	switch {
	// EPERM is how a process learns at once that its own datagram was rejected.
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EPERM):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "silence"
	default:
		return err.Error()
	}
}

// Connect opens a connection that stays open for the test.
func (l *Lab) Connect(from *nstest.NS, network string, port int, to netip.AddrPort) net.Conn {
	l.T.Helper()
	var c net.Conn
	var err error
	from.Do(func() {
		d := Dialer(network, port)
		d.Timeout = Patience("")
		c, err = d.Dial(network, to.String())
	})
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { c.Close() })
	return c
}
