package bgp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A router that connects to each of our addresses every second.
const frrConnectsConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.2 timers connect 1
 neighbor 10.0.0.11 remote-as 65010
 neighbor 10.0.0.11 timers connect 1
 neighbor 10.0.0.11 ttl-security hops 1
 neighbor 10.0.0.16 remote-as 65010
 neighbor 10.0.0.16 timers connect 1
 neighbor 10.0.0.16 password sesame
 neighbor fd00::2 remote-as 65010
 neighbor fd00::2 timers connect 1
 neighbor fd00::2 password sesame
 neighbor fd00::3 remote-as 65010
 neighbor fd00::3 timers connect 1
`

// listening reports whether this node listens on BGP's port.
func listening(t *testing.T) bool {
	t.Helper()
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + name)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); strings.HasSuffix(f[1], ":00B3") && f[3] == "0A" {
				return true
			}
		}
	}
	return false
}

// The router connects, and each kind of session comes up as one that we opened; what
// differs is dropped by the kernel, and the reason says what it could be.
func TestFRRPassive(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrConnectsConfig)
		node := nstest.Node(t)
		node.Addr("uplink", "10.0.0.11/24", "10.0.0.16/24", "fd00::3/64")
		nstest.Link(t, node, "elsewhere", nstest.New(t, "nowhere"), "eth0")
		const waits = "10.0.0.1 has not connected to this node, which waits for that (passive)"
		for _, c := range []struct {
			name, source string
			change       func(s *Session)
			reason       string // empty: the session comes up
		}{
			// First, before the router's connections to its address are turned away and it
			// waits longer and longer.
			{name: "GTSM", source: "10.0.0.11", change: func(s *Session) { s.TTLSecurityHops = 1 }},
			{name: "plain", source: "10.0.0.2"},
			{name: "password", source: "10.0.0.16", change: func(s *Session) { s.Password = "sesame" }},
			{name: "password over IPv6", source: "fd00::2", change: func(s *Session) { s.Password = "sesame" }},
			{name: "device", source: "10.0.0.2", change: func(s *Session) { s.Device = "uplink" }},
			{name: "wrong password", source: "10.0.0.16", change: func(s *Session) { s.Password = "simsim" },
				reason: waits + "; so does a router that has no password for this node, or another one"},
			{name: "GTSM on our side only", source: "fd00::3", change: func(s *Session) { s.TTLSecurityHops = 1 },
				reason: "fd00::1 has not connected to this node, which waits for that (passive); ttlSecurityHops 1 " +
					"drops packets that have come " +
					"further or were not sent with TTL 255: does the router have it, too?"},
			{name: "another device", source: "10.0.0.2", change: func(s *Session) { s.Device = "elsewhere" },
				reason: waits},
			{name: "a device that is not there", source: "10.0.0.2", change: func(s *Session) { s.Device = "red" },
				reason: "device red is not on this node"},
			{name: "another address of this node", source: "10.0.0.3",
				reason: "router connected to 10.0.0."}, // to any, since it connects to several
		} {
			t.Run(c.name, func(t *testing.T) {
				s := newServer(t, Options{})
				if listening(t) {
					t.Error("listens although no session needs it")
				}
				conf := frrSession(c.source)
				conf.Passive = true
				if conf.SourceAddress.Is6() {
					conf.PeerAddress = netip.MustParseAddr("fd00::1")
				}
				if c.change != nil {
					c.change(&conf)
				}
				_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
				must(t, err)
				if c.reason != "" {
					eventually(t, c.reason, func() bool {
						return strings.HasPrefix(s.sessionStatus("tor1").LastError, c.reason)
					})
					return
				}
				hop := c.source
				if conf.SourceAddress.Is6() {
					hop = "10.0.0.2"
				}
				eventually(t, "route", func() bool { return r.kernel() == "192.0.2.1/32 via "+hop })
				says := strings.ReplaceAll(r.vtysh("-c", "show bgp neighbors "+c.source+" json"), " ", "")
				if !strings.Contains(says, `"portForeign":179`) {
					t.Errorf("it was not the router that connected:\n%s", says)
				}
				if st := s.sessionStatus("tor1"); st.State != Established || st.LocalAddress != conf.SourceAddress {
					t.Errorf("status: %+v", st)
				}
				must(t, s.Close(t.Context(), Withdraw))
				if listening(t) {
					t.Error("still listens")
				}
				eventually(t, "withdrawal", func() bool { return r.kernel() == "" })
			})
		}
	})
}

// Where another program has the port, the passive session says so, and comes up when
// the port is free; the other session is not concerned. Strangers get no answer.
func TestFRRPassivePort(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrConnectsConfig)
		nstest.Node(t).Addr("uplink", "fd00::3/64")
		r.ns.Addr("eth0", "10.0.0.8/24")
		squatter, err := net.Listen("tcp4", ":179")
		must(t, err)
		t.Cleanup(func() { squatter.Close() })
		s := newServer(t, Options{})
		passive, other := frrSession("10.0.0.2"), frrSession("fd00::3")
		passive.Passive = true
		other.Name, other.PeerAddress = "other", netip.MustParseAddr("fd00::1")
		_, err = s.Set(t.Context(), state([]Session{other, passive}, routes("192.0.2.1/32")))
		must(t, err)
		const want = "this node cannot listen on TCP port 179, as passive wants: another program does; is there " +
			"another BGP speaker?"
		eventually(t, want, func() bool { return s.sessionStatus("tor1").LastError == want })
		eventually(t, "the other session", func() bool { return s.sessionStatus("other").State == Established })
		since := s.sessionStatus("other").Since
		must(t, squatter.Close())
		eventually(t, "the passive session", func() bool { return s.sessionStatus("tor1").State == Established })
		if st := s.sessionStatus("other"); st.Flaps != 0 || st.Since != since {
			t.Errorf("the other session: %+v", st)
		}

		r.ns.Do(func() {
			d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 8)}}
			conn, dialErr := d.Dial("tcp", "10.0.0.2:179")
			if err = dialErr; err == nil {
				conn.Close()
			}
		})
		if !isTimeout(err) {
			t.Errorf("a stranger connects: %v", err)
		}
	})
}

func TestListenError(t *testing.T) {
	for err, want := range map[error]string{
		syscall.EADDRINUSE: ": another program does; is there another BGP speaker?",
		syscall.EACCES:     ": the speaker needs the capability NET_BIND_SERVICE",
		syscall.ENOBUFS:    ": no buffer space available",
	} {
		got := listenError(&net.OpError{Op: "listen", Net: "tcp4", Err: os.NewSyscallError("bind", err)}).Error()
		if want = "this node cannot listen on TCP port 179, as passive wants" + want; got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// A router that opens a second connection has forgotten the first if it has graceful
// restart, and is turned away if not: then the hold timer decides.
func TestSecondConnection(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		for _, graceful := range []bool{true, false} {
			t.Run(fmt.Sprintf("graceful restart %v", graceful), func(t *testing.T) {
				connect := func() *fakeConn {
					t.Helper()
					d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 5)}}
					conn, err := d.Dial("tcp4", "127.0.0.1:179")
					must(t, err)
					t.Cleanup(func() { conn.Close() })
					return &fakeConn{conn}
				}
				s := newServer(t, Options{})
				conf := Session{
					Name: "tor1", PeerAddress: netip.MustParseAddr("127.0.0.5"), PeerASN: 65001, Passive: true,
					GracefulRestart: true,
				}
				_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
				must(t, err)
				eventually(t, "port", func() bool { return listening(t) })
				caps := []packet.ParameterCapabilityInterface{packet.NewCapMultiProtocol(packet.RF_IPv4_UC)}
				if graceful {
					caps = append(caps, packet.NewCapGracefulRestart(false, false, 60, nil))
				}
				establish := func(c *fakeConn) {
					c.send(openMessage(65001, caps...))
					c.read()
					c.send(packet.NewBGPKeepAliveMessage())
				}
				first := connect()
				establish(first)
				eventually(t, "session", func() bool { return s.sessionStatus("tor1").State == Established })
				since := s.sessionStatus("tor1").Since
				second := connect()
				if !graceful {
					must(t, second.SetReadDeadline(time.Now().Add(time.Minute)))
					if n, err := second.Read(make([]byte, 1)); err == nil || isTimeout(err) {
						t.Errorf("the second connection: %d bytes, %v", n, err)
					}
					if st := s.sessionStatus("tor1"); st.State != Established || st.Since != since {
						t.Errorf("the first: %+v", st)
					}
					return
				}
				establish(second)
				eventually(t, "the second session", func() bool {
					st := s.sessionStatus("tor1")
					return st.State == Established && st.Flaps == 1 &&
						st.LastError == "router opened another connection"
				})
				must(t, first.SetReadDeadline(time.Now().Add(time.Minute)))
				for err = nil; err == nil; _, err = first.Read(make([]byte, 4096)) {
				}
				if isTimeout(err) || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the first connection: %v", err)
				}
			})
		}
	})
}
