package proxy

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"

	"github.com/fanfare-lb/fanfare/internal/nstest"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
)

// A rawTCP sends TCP segments as they are and sees all that arrive.
type rawTCP struct {
	conn net.PacketConn
	from netip.Addr
}

func (l *lab) rawTCP(ns *nstest.NS) *rawTCP {
	l.t.Helper()
	r := &rawTCP{from: at(ns.Name, 0)}
	var err error
	ns.Do(func() { r.conn, err = net.ListenPacket("ip4:tcp", "0.0.0.0") })
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { r.conn.Close() })
	return r
}

// send sends a segment with these flags.
func (r *rawTCP) send(t *testing.T, to netip.Addr, fromPort, toPort uint16, flags byte) {
	t.Helper()
	r.sendAt(t, to, fromPort, toPort, flags, 1, 1)
}

// sendAt is send with a sequence number and an acknowledgement.
func (r *rawTCP) sendAt(t *testing.T, to netip.Addr, fromPort, toPort uint16, flags byte, seq, ack uint32) {
	t.Helper()
	b := binary.BigEndian.AppendUint16(nil, fromPort)
	b = binary.BigEndian.AppendUint16(b, toPort)
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := append(append(r.from.AsSlice(), to.AsSlice()...), 0, 6, 0, byte(len(b)))
	binary.BigEndian.PutUint16(b[16:], conntrack.Checksum(append(pseudo, b...)))
	if _, err := r.conn.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		t.Fatal(err)
	}
}

// reset says whether an RST arrives.
func (r *rawTCP) reset(want string) bool {
	_ = r.conn.SetReadDeadline(time.Now().Add(patience(want)))
	buf := make([]byte, 1500)
	for {
		n, _, err := r.conn.ReadFrom(buf)
		if err != nil {
			return false
		}
		if n >= 14 && buf[13]&0x04 != 0 {
			return true
		}
	}
}

// end reads until the other side's FIN arrives at a port, and returns what the client
// sends next: its sequence number, and what it acknowledges.
func (r *rawTCP) end(t *testing.T, port uint16) (seq, ack uint32) {
	t.Helper()
	_ = r.conn.SetReadDeadline(time.Now().Add(patience("")))
	buf := make([]byte, 1500)
	for {
		n, _, err := r.conn.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		if n >= 20 && binary.BigEndian.Uint16(buf[2:]) == port && buf[13]&0x01 != 0 {
			return binary.BigEndian.Uint32(buf[8:]), binary.BigEndian.Uint32(buf[4:]) + 1
		}
	}
}

// icmp6 sends a message that goes two hops and says whether it is refused.
func (l *lab) icmp6(from *nstest.NS, to netip.Addr, m icmp.Message) string {
	l.t.Helper()
	var c *icmp.PacketConn
	var err error
	from.Do(func() { c, err = icmp.ListenPacket("ip6:ipv6-icmp", "::") })
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	b, err := m.Marshal(icmp.IPv6PseudoHeader(at(from.Name, 1).AsSlice(), to.AsSlice()))
	if err == nil {
		err = c.IPv6PacketConn().SetHopLimit(3)
	}
	if err == nil {
		_, err = c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()})
	}
	if err != nil {
		l.t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience("silence")))
	return awaitReply(c, 58, to, ipv6.ICMPTypeEchoReply)
}
