package proxytest

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A RawTCP sends TCP segments as they are and sees all that arrive.
type RawTCP struct {
	Conn net.PacketConn
	From netip.Addr
}

func (l *Lab) RawTCP(ns *nstest.NS) *RawTCP {
	l.T.Helper()
	return &RawTCP{Conn: l.Raw(ns, 0, "tcp"), From: At(ns.Name, 0)}
}

// Raw opens a socket for whole packets of a protocol.
func (l *Lab) Raw(ns *nstest.NS, family state.SetID, protocol string) (c net.PacketConn) {
	l.T.Helper()
	var err error
	ns.Do(func() {
		c, err = net.ListenPacket([]string{"ip4:", "ip6:"}[family]+protocol, At(ns.Name, family).String())
	})
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { c.Close() })
	return c
}

// Send sends a segment with these flags.
func (r *RawTCP) Send(t *testing.T, to netip.Addr, fromPort, toPort uint16, flags byte) {
	t.Helper()
	r.SendAt(t, to, fromPort, toPort, flags, 1, 1)
}

// SendAt is send with a sequence number and an acknowledgement. A segment that a rule at output drops
// is no error.
func (r *RawTCP) SendAt(t *testing.T, to netip.Addr, fromPort, toPort uint16, flags byte, seq, ack uint32) {
	t.Helper()
	b := binary.BigEndian.AppendUint16(nil, fromPort)
	b = binary.BigEndian.AppendUint16(b, toPort)
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := append(append(r.From.AsSlice(), to.AsSlice()...), 0, 6, 0, byte(len(b)))
	binary.BigEndian.PutUint16(b[16:], checksum(append(pseudo, b...)))
	if _, err := r.Conn.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
}

// Reset reports whether an RST arrives.
func (r *RawTCP) Reset(want string) bool {
	_ = r.Conn.SetReadDeadline(time.Now().Add(Patience(want)))
	buf := make([]byte, 1500)
	for {
		n, _, err := r.Conn.ReadFrom(buf)
		if err != nil {
			return false
		}
		if n >= 14 && buf[13]&0x04 != 0 {
			return true
		}
	}
}

// End reads until the other side's FIN arrives at a port, and returns what the client
// sends next: its sequence number, and what it acknowledges.
func (r *RawTCP) End(t *testing.T, port uint16) (seq, ack uint32) {
	t.Helper()
	_ = r.Conn.SetReadDeadline(time.Now().Add(Patience("")))
	buf := make([]byte, 1500)
	for {
		n, _, err := r.Conn.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		if n >= 20 && binary.BigEndian.Uint16(buf[2:]) == port && buf[13]&0x01 != 0 {
			return binary.BigEndian.Uint32(buf[8:]), binary.BigEndian.Uint32(buf[4:]) + 1
		}
	}
}

// Icmp6 sends a message that goes two hops and says whether it is refused.
func (l *Lab) Icmp6(from *nstest.NS, to netip.Addr, m icmp.Message) string {
	l.T.Helper()
	var c *icmp.PacketConn
	var err error
	from.Do(func() { c, err = icmp.ListenPacket("ip6:ipv6-icmp", "::") })
	if err != nil {
		l.T.Fatal(err)
	}
	defer c.Close()
	b, err := m.Marshal(icmp.IPv6PseudoHeader(At(from.Name, 1).AsSlice(), to.AsSlice()))
	if err == nil {
		err = c.IPv6PacketConn().SetHopLimit(3)
	}
	if err == nil {
		_, err = c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()})
	}
	if err != nil {
		l.T.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(Patience("silence")))
	return awaitReply(c, 58, to, ipv6.ICMPTypeEchoReply)
}

// ResetOf reports whether an RST arrives at a port.
func (r *RawTCP) ResetOf(port uint16) bool {
	_ = r.Conn.SetReadDeadline(time.Now().Add(Patience("")))
	buf := make([]byte, 1500)
	for {
		n, _, err := r.Conn.ReadFrom(buf)
		if err != nil {
			return false
		}
		if n >= 14 && binary.BigEndian.Uint16(buf[2:]) == port && buf[13]&0x04 != 0 {
			return true
		}
	}
}

// checksum is that of the Internet (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return ^uint16(sum % 0xffff)
}
