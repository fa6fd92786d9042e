package bgp

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A fake is a router that does what a real one seldom does.
type fake struct{ addr netip.AddrPort }

// A fakeConn is a connection to a fake. After an error it only returns empty
// messages: the test looks at the other end.
type fakeConn struct{ net.Conn }

// startFake runs script for every connection to it, and then closes that.
func startFake(t *testing.T, script func(c *fakeConn)) fake {
	t.Helper()
	return startFakeAt(t, "127.0.0.5", script)
}

func startFakeAt(t *testing.T, addr string, script func(c *fakeConn)) fake {
	t.Helper()
	l, err := net.Listen("tcp", addr+":0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				script(&fakeConn{conn})
			}()
		}
	}()
	return fake{l.Addr().(*net.TCPAddr).AddrPort()}
}

func (f fake) session() Session {
	return Session{
		Name:        "tor1",
		PeerAddress: f.addr.Addr(),
		PeerPort:    f.addr.Port(),
		PeerASN:     65001,
		HoldTime:    3 * time.Second,
		ConnectTime: 200 * time.Millisecond,
	}
}

func (c *fakeConn) read() *packet.BGPMessage {
	empty := &packet.BGPMessage{Body: &packet.BGPOpen{}}
	b := make([]byte, headerLen, 4096)
	if _, err := io.ReadFull(c, b); err != nil {
		return empty
	}
	b = b[:int(b[16])<<8|int(b[17])]
	if _, err := io.ReadFull(c, b[headerLen:]); err != nil {
		return empty
	}
	m, err := packet.ParseBGPMessage(b)
	if err != nil {
		return empty
	}
	return m
}

// readAll reads until our side closes.
func (c *fakeConn) readAll() { _, _ = io.Copy(io.Discard, c) }

func (c *fakeConn) send(m *packet.BGPMessage) {
	b, err := m.Serialize()
	if err == nil {
		_, _ = c.Write(b)
	}
}

// establish is the whole opening.
func (c *fakeConn) establish() {
	c.send(openMessage(65001))
	c.read()
	c.send(packet.NewBGPKeepAliveMessage())
	c.read()
}

func openMessage(asn uint32, caps ...packet.ParameterCapabilityInterface) *packet.BGPMessage {
	caps = append(caps, packet.NewCapFourOctetASNumber(asn))
	m, err := packet.NewBGPOpenMessage(uint16(min(asn, 23456)), 90, netip.MustParseAddr("10.255.0.1"),
		[]packet.OptionParameterInterface{packet.NewOptionParameterCapability(caps)})
	if err != nil {
		panic(err)
	}
	return m
}
