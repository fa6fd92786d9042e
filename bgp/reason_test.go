package bgp

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// What Status says when real connections go wrong.
func TestReasons(t *testing.T) {
	cease := func(subcode byte, data string) *packet.BGPMessage {
		return packet.NewBGPNotificationMessage(packet.BGP_ERROR_CEASE, subcode, []byte(data))
	}
	for _, c := range []struct {
		name   string
		script func(c *fakeConn)
		change func(s *Session)
		want   string
		flaps  bool
	}{
		{name: "wrong AS number",
			script: func(c *fakeConn) { c.send(openMessage(65009)); c.readAll() },
			want:   "wrong AS number: router says AS65009, BGPPeer says AS65001"},
		{name: "wrong AS number of four octets",
			script: func(c *fakeConn) { c.send(openMessage(4200000009)); c.readAll() },
			want:   "wrong AS number: router says AS4200000009, BGPPeer says AS65001"},
		{name: "router expects another of us",
			script: func(c *fakeConn) {
				c.read()
				c.send(packet.NewBGPNotificationMessage(packet.BGP_ERROR_OPEN_MESSAGE_ERROR,
					packet.BGP_ERROR_SUB_BAD_PEER_AS, nil))
				c.readAll()
			},
			want: "router refuses our AS65010: it expects another AS number (OPEN Message Error/Bad Peer AS received)"},
		{name: "same router ID",
			script: func(c *fakeConn) {
				m := openMessage(65010)
				m.Body.(*packet.BGPOpen).ID = netip.MustParseAddr("10.255.0.10")
				c.send(m)
				c.readAll()
			},
			change: func(s *Session) { s.PeerASN = 65010 },
			want:   "router has the same router ID 10.255.0.10 as this node"},
		{name: "our own AS number where an external one is wanted",
			script: func(c *fakeConn) { c.send(openMessage(65010)); c.readAll() },
			change: func(s *Session) { s.PeerASN, s.External = 0, true },
			want:   "wrong AS number: router says AS65010, which is our own, and BGPPeer says external"},
		{name: "no such source interface",
			change: func(s *Session) { s.SourceInterface = "nothing0" },
			want:   "source interface nothing0 is not on this node"},
		{name: "source interface of the other family only",
			change: func(s *Session) { s.PeerAddress, s.SourceInterface = netip.MustParseAddr("2001:db8::9"), "lo" },
			want:   "source interface lo has no address to reach 2001:db8::9 from"},
		{name: "a password that the router does not have",
			change: func(s *Session) { s.Password = "sesame" },
			want: "no answer from 127.0.0.5 port %d; so does a router that has no password for this " +
				"node, or another one"},
		// The loopback's packets have TTL 64.
		{name: "GTSM here only",
			change: func(s *Session) { s.TTLSecurityHops = 1 },
			want: "no answer from 127.0.0.5 port %d; ttlSecurityHops 1 drops packets that have come further or " +
				"were not sent with TTL 255: does the router have it, too?"},
		{name: "closes at once",
			script: func(*fakeConn) {},
			want:   "router closed the connection before its OPEN: it may not know this node as a neighbour"},
		{name: "not BGP",
			script: func(c *fakeConn) {
				_, _ = io.WriteString(c, strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 4))
				c.readAll()
			},
			want: "what answers at 127.0.0.5 port %d does not speak BGP (Message Header " +
				"Error/Connection Not Synchronized)"},
		{name: "shut down",
			script: func(c *fakeConn) {
				c.establish()
				c.send(cease(packet.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, "\x0cmaintenance\x07"))
				c.readAll()
			},
			want: `router ended the session: Cease/Administrative Shutdown ("maintenance") received`, flaps: true},
		{name: "too many prefixes",
			script: func(c *fakeConn) {
				c.establish()
				c.send(cease(packet.BGP_ERROR_SUB_MAXIMUM_NUMBER_OF_PREFIXES_REACHED, ""))
				c.readAll()
			},
			want: "router ended the session: Cease/Maximum Number of Prefixes Reached received", flaps: true},
		{name: "connection ends",
			script: func(c *fakeConn) { c.establish() },
			want:   "router closed the connection without a NOTIFICATION", flaps: true},
		{name: "falls silent",
			script: func(c *fakeConn) { c.establish(); c.readAll() },
			want:   "hold timer expired: nothing received from the router for 3s", flaps: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startFake(t, c.script)
			s := newServer(t, Options{})
			conf := r.session()
			if c.change != nil {
				c.change(&conf)
			}
			_, err := s.Set(t.Context(), state([]Session{conf}, nil))
			must(t, err)
			want := strings.Replace(c.want, "%d", fmt.Sprint(conf.PeerPort), 1)
			eventually(t, want, func() bool { return s.sessionStatus("tor1").LastError == want })
			if st := s.sessionStatus("tor1"); (st.Flaps > 0) != c.flaps || st.LastErrorTime.IsZero() {
				t.Errorf("%d flaps; status %+v", st.Flaps, st)
			}
		})
	}
}

func TestConnectionRefused(t *testing.T) {
	s := newServer(t, Options{})
	conf := Session{
		Name: "tor1", PeerAddress: netip.MustParseAddr("127.0.0.6"), PeerASN: 65001, ConnectTime: 50 * time.Millisecond,
	}
	_, err := s.Set(t.Context(), state([]Session{conf}, nil))
	must(t, err)
	const want = "connection refused: nothing listens at 127.0.0.6 port 179"
	eventually(t, want, func() bool { return s.sessionStatus("tor1").LastError == want })
	select {
	case <-s.Changed():
	case <-time.After(time.Minute):
		t.Error("Changed said nothing")
	}
}

func TestDialError(t *testing.T) {
	s := Session{
		PeerAddress: netip.MustParseAddr("192.0.2.1"), SourceAddress: netip.MustParseAddr("192.0.2.9"), PeerPort: 1179,
	}
	op := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{op(syscall.ECONNREFUSED), "connection refused: nothing listens at 192.0.2.1 port 1179"},
		{op(syscall.EHOSTUNREACH), "no route to host: 192.0.2.1 port 1179 does not answer, or is " +
			"not directly connected"},
		{op(syscall.ENETUNREACH), "network is unreachable: this node has no route to 192.0.2.1"},
		{op(syscall.EADDRNOTAVAIL), "source address 192.0.2.9 is not on this node"},
		{op(syscall.EPERM), "a firewall on this node refuses connections to 192.0.2.1 port 1179"},
		{op(syscall.ECONNRESET), "connection reset by 192.0.2.1 port 1179"},
		{op(syscall.ETIMEDOUT), "no answer from 192.0.2.1 port 1179"},
		{fmt.Errorf("dial: %w", os.ErrDeadlineExceeded), "no answer from 192.0.2.1 port 1179"},
		{io.ErrUnexpectedEOF, "unexpected EOF"},
	} {
		if got := dialError(s, c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}

func TestBestSource(t *testing.T) {
	eth0 := []string{"192.0.2.9/24", "198.51.100.9/24", "fe80::9/64", "2001:db8:1::9/64", "2001:db8:2::9/64"}
	for peer, want := range map[string]string{
		"198.51.100.1": "198.51.100.9", "203.0.113.1": "192.0.2.9", "2001:db8:2::1": "2001:db8:2::9",
		"2001:db8:9::1": "2001:db8:1::9", "fe80::1%eth0": "fe80::9",
	} {
		var prefixes []netip.Prefix
		for _, p := range eth0 {
			prefixes = append(prefixes, netip.MustParsePrefix(p))
		}
		if got := bestSource(prefixes, netip.MustParseAddr(peer)); got.String() != want {
			t.Errorf("to %s from %s, want %s", peer, got, want)
		}
	}
}

func TestNotificationText(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{"", "code 0 subcode 0"},
		{"\x04\x00", "Hold Timer Expired"},
		{"\x06\x02", "Cease/Administrative Shutdown"},
		{"\x06\x02\x05hello", `Cease/Administrative Shutdown ("hello")`},
		{"\x06\x04\x07a\x1b[2Jb\n", `Cease/Administrative Reset ("a[2Jb")`}, // no terminal escapes
		{"\x06\x02\xffshort", "Cease/Administrative Shutdown"},
		{"\x06\x02\x02\xff\xfe", "Cease/Administrative Shutdown"},
		{"\x06\x09", "Cease/Hard Reset"},
		{"\x06\x63", "Cease/subcode 99"},
		{"\x63\x01", "code 99 subcode 1"},
	} {
		if got := parseNotification([]byte(c.body)).String(); got != c.want {
			t.Errorf("%q: %s, want %s", c.body, got, c.want)
		}
	}
}
