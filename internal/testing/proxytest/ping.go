package proxytest

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// pingID makes each ping a flow of its own.
var pingID atomic.Int32

// Ping sends an echo request and says whether the address itself answers.
func (l *Lab) Ping(from *nstest.NS, to netip.Addr, want string) string {
	l.T.Helper()
	network, listen, proto := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, listen, proto = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var c *icmp.PacketConn
	var err error
	from.Do(func() { c, err = icmp.ListenPacket(network, listen) })
	if err != nil {
		l.T.Fatal(err)
	}
	defer c.Close()
	m := icmp.Message{Type: request, Body: &icmp.Echo{ID: int(pingID.Add(1)), Seq: 1, Data: []byte("fanfare")}}
	b, err := m.Marshal(nil)
	if err != nil {
		l.T.Fatal(err)
	}
	if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return Outcome(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(Patience(want)))
	return awaitReply(c, proto, to, reply)
}

func awaitReply(c *icmp.PacketConn, proto int, to netip.Addr, reply icmp.Type) string {
	buf := make([]byte, 256)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return Outcome(err)
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err == nil && m.Type == reply && from.String() == to.String() {
			return "reply"
		}
		if err == nil && quotes(m, proto) {
			return "refused"
		}
	}
}

// quotes reports whether m is the error for a packet of the protocol that
// this namespace sent.
func quotes(m *icmp.Message, proto int) bool {
	e, ok := m.Body.(*icmp.DstUnreach)
	if !ok {
		return false
	}
	const protocol4, nextHeader6 = 9, 6 // offsets in the headers
	if m.Type == ipv6.ICMPTypeDestinationUnreachable {
		return len(e.Data) > nextHeader6 && int(e.Data[nextHeader6]) == proto
	}
	return len(e.Data) > protocol4 && int(e.Data[protocol4]) == proto
}
