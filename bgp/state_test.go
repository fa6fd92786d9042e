package bgp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestStateString(t *testing.T) {
	s := state([]Session{
		{Name: "core", PeerASN: 65010, PeerAddress: netip.MustParseAddr("fe80::1%eth0")},
		{Name: "tor1", PeerASN: 65001, LocalASN: 65099, PeerAddress: netip.MustParseAddr("192.0.2.254")},
		{Name: "tor2", External: true, PeerAddress: netip.MustParseAddr("192.0.2.253"), Weights: true},
	}, routes("192.0.2.1/32", "192.0.2.2/32 weight 3 to tor2", "2001:db8::1/128"))
	const want = `session core: AS65010 to AS65010 at fe80::1%eth0
session tor1: AS65099 to AS65001 at 192.0.2.254
session tor2: AS65010 to any other AS at 192.0.2.253, with weights
announce 192.0.2.1/32
announce 192.0.2.2/32 weight 3 to tor2
announce 2001:db8::1/128
`
	if got := s.String(); got != want {
		t.Errorf("got:\n%s", got)
	}
}

// Whatever prints a session, the password is not in what it prints.
func TestPasswordIsHidden(t *testing.T) {
	s := state([]Session{{Name: "tor1", Password: "sesame"}}, nil)
	j, err := json.Marshal(s)
	must(t, err)
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "session", s.Sessions[0], "password", s.Sessions[0].Password)
	for _, text := range []string{string(j), logged.String(), s.String(), fmt.Sprint(s),
		fmt.Sprintf("%+v %#v %q", s, s.Sessions, s.Sessions[0].Password)} {
		if strings.Contains(text, "sesame") {
			t.Errorf("shown: %s", text)
		}
	}
}

func TestValidate(t *testing.T) {
	good := Session{Name: "tor1", PeerAddress: netip.MustParseAddr("192.0.2.254"), PeerASN: 65001}
	change := func(f func(*Session)) State {
		s := good
		f(&s)
		return state([]Session{s}, nil)
	}
	addr := netip.MustParseAddr
	for _, c := range []struct {
		name  string
		state State
		want  string
	}{
		{"good", state([]Session{good}, routes("192.0.2.1/32", "2001:db8::/64")), ""},
		{"empty", State{}, ""},
		{"no identity", State{Sessions: []Session{good}},
			"ASN 0: must be 1 to 4294967295\nrouter ID invalid IP: must be an IPv4 address (RFC 4271 §4.2)"},
		{"no peer AS", change(func(s *Session) { s.PeerASN = 0 }),
			"session tor1: PeerASN 0: must be 1 to 4294967295"},
		{"no name", change(func(s *Session) { s.Name = "" }),
			`session : Name "": must not be empty`},
		{"no address", change(func(s *Session) { s.PeerAddress = netip.Addr{} }),
			"session tor1: PeerAddress invalid IP: must be the router's IPv4 or IPv6 address"},
		{"mapped address", change(func(s *Session) { s.PeerAddress = addr("::ffff:192.0.2.1") }),
			"session tor1: PeerAddress ::ffff:192.0.2.1: must be the router's IPv4 or IPv6 address"},
		{"link-local without interface", change(func(s *Session) { s.PeerAddress = addr("fe80::1") }),
			"session tor1: PeerAddress fe80::1: a link-local address needs its interface, as in fe80::1%eth0"},
		{"global with interface", change(func(s *Session) { s.PeerAddress = addr("2001:db8::1%eth0") }),
			"session tor1: PeerAddress 2001:db8::1%eth0: only a link-local address can name an interface"},
		{"mixed families", change(func(s *Session) { s.SourceAddress = addr("2001:db8::1") }),
			"session tor1: SourceAddress 2001:db8::1: must be of the same family as PeerAddress 192.0.2.254"},
		{"multicast source", change(func(s *Session) { s.SourceAddress = addr("224.0.0.1") }),
			"session tor1: SourceAddress 224.0.0.1: must be an address of this node"},
		{"external with a number", change(func(s *Session) { s.External = true }),
			"session tor1: PeerASN 65001: must be 0 when any external AS number is right"},
		{"external", change(func(s *Session) { s.PeerASN, s.External = 0, true }), ""},
		{"bad router ID", change(func(s *Session) { s.RouterID = addr("2001:db8::1") }),
			"session tor1: RouterID 2001:db8::1: must be an IPv4 address (RFC 4271 §4.2)"},
		{"two sources", change(func(s *Session) { s.SourceAddress, s.SourceInterface = addr("192.0.2.1"), "eth0" }),
			"session tor1: SourceInterface eth0: excludes SourceAddress 192.0.2.1"},
		{"too far", change(func(s *Session) { s.TTLSecurityHops = 255 }),
			"session tor1: TTLSecurityHops 255: must be 1 to 254"},
		{"two distances", change(func(s *Session) { s.TTLSecurityHops, s.EBGPMultihopTTL = 1, 2 }),
			"session tor1: TTLSecurityHops 1: excludes EBGPMultihopTTL: it says itself how far away the router may be"},
		{"long password", change(func(s *Session) { s.Password = Password(strings.Repeat("s", 81)) }),
			"session tor1: Password (hidden): must have at most 80 bytes"},
		{"wild BFD", change(func(s *Session) {
			s.BFD, s.EBGPMultihopTTL = BFD{Transmit: time.Second, Receive: time.Millisecond, Multiplier: 1}, 2
		}),
			"session tor1: BFD.Receive 1ms: must be 10 ms to 60 s\nsession tor1: BFD.Multiplier 1: must be 2 to 255\n" +
				"session tor1: BFD with hops: is for a router that is directly connected (RFC 5881)"},
		{"short hold time", change(func(s *Session) { s.HoldTime = 2 * time.Second }),
			"session tor1: HoldTime 2s: must be whole seconds, 3 s to 65535 s (RFC 4271 §4.2)"},
		{"long hold time", change(func(s *Session) { s.HoldTime = 20 * time.Hour }),
			"session tor1: HoldTime 20h0m0s: must be whole seconds, 3 s to 65535 s (RFC 4271 §4.2)"},
		{"part of a second", change(func(s *Session) { s.KeepaliveTime = 1500 * time.Millisecond }),
			"session tor1: KeepaliveTime 1.5s: must be whole seconds, at least 1 s and less than the hold time"},
		{"late keepalive", change(func(s *Session) { s.KeepaliveTime = 90 * time.Second }),
			"session tor1: KeepaliveTime 1m30s: must be whole seconds, at least 1 s and less than the hold time"},
		{"negative connect time", change(func(s *Session) { s.ConnectTime = -time.Second }),
			"session tor1: ConnectTime -1s: must not be negative"},
		{"long restart time", change(func(s *Session) { s.GracefulRestart, s.RestartTime = true, 2*time.Hour }),
			"session tor1: RestartTime 2h0m0s: must be whole seconds, 2 s to 4095 s (RFC 4724 §3)"},
		{"restart time without graceful restart", change(func(s *Session) { s.RestartTime = time.Millisecond }), ""},
		{"same router twice", state([]Session{good, {Name: "tor2", PeerAddress: good.PeerAddress, PeerASN: 65002}},
			nil),
			"session tor2: PeerAddress 192.0.2.254: session tor1 has it already, and there can be only one, also " +
				"with another port or device; remove one of them"},
		{"same name twice", state([]Session{good, {Name: "tor1", PeerAddress: addr("192.0.2.253"), PeerASN: 65002}},
			nil),
			"session tor1: the name is used twice"},
		{"next hop of the session's own family", change(func(s *Session) { s.NextHop = addr("192.0.2.1") }),
			"session tor1: NextHop 192.0.2.1: must be an address of this node of the other family than " +
				"PeerAddress 192.0.2.254"},
		{"node's addresses in the wrong place", State{NextHop4: addr("2001:db8::a"), NextHop6: addr("fe80::1")},
			"NextHop4 2001:db8::a: must be an IPv4 address of this node\n" +
				"NextHop6 fe80::1: must be an IPv6 address of this node, and not a link-local one"},
		{"bad routes", state(nil, routes("192.0.2.1/24", "::ffff:192.0.2.1/128")),
			"route 192.0.2.1/24: has bits beyond its length, 192.0.2.0/24 would be right\n" +
				"route ::ffff:192.0.2.1/128: must be an IPv4 or IPv6 prefix"},
	} {
		got := ""
		if err := c.state.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", c.name, got, c.want)
		}
	}
}

// Valid routes are not copied. Of many, only those are checked that are not known to be valid.
func TestCheckRoutes(t *testing.T) {
	all := RoutesOf(routes("2001:db8::1/128", "192.0.2.2/32", "192.0.2.1/32", "192.0.2.2/32")...)
	if got, bad := checkRoutes(Routes{}, all); !got.Same(all) || bad != nil {
		t.Errorf("copied: %v %v", list(got.Slice()), bad)
	}
	with := RoutesOf(append(all.Slice(), told(ForAll(Attributes{Prepend: 17}), routes("192.0.2.3/32")...)...)...)
	for _, valid := range []Routes{{}, all} {
		got, bad := checkRoutes(valid, with)
		if list(got.Slice()) != "192.0.2.1/32, 192.0.2.2/32, 2001:db8::1/128" || len(bad) != 1 {
			t.Errorf("%s %v", list(got.Slice()), bad)
		}
	}
	if _, bad := checkRoutes(with, with); len(bad) > 0 {
		t.Errorf("checked again: %v", bad)
	}
}

func TestSyncing(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	sessions := []Session{
		{Name: "a", GracefulRestart: true},                               // 30 s
		{Name: "b", GracefulRestart: true, RestartTime: 5 * time.Second}, //
		{Name: "c"},
	}
	for _, c := range []struct {
		name     string
		sessions []Session
		marks    map[string]int
		now      int
		want     string
	}{
		{"no session", nil, nil, 0, "0s"},
		{"no session with graceful restart", sessions[2:], nil, 0, "0s"},
		{"at first", sessions, nil, 1, "not yet"},
		{"one of two", sessions, map[string]int{"a": 2}, 3, "not yet"},
		{"both", sessions, map[string]int{"a": 2, "b": 3}, 3, "3s"},
		{"one told, one gone", sessions, map[string]int{"a": 2}, 5, "5s"},
		{"told later than the other gave up", sessions, map[string]int{"a": 9}, 10, "9s"},
		{"both gone", sessions, nil, 30, "30s"},
		{"both gone but a moment", sessions, nil, 29, "not yet"},
		{"told by a session without", sessions, map[string]int{"a": 1, "b": 1, "c": 20}, 2, "1s"},
	} {
		y := newSyncing(begin, c.sessions)
		for name, s := range c.marks {
			y.mark(name, at(s))
			y.mark(name, at(s+100)) // a later session does not count
		}
		got := "not yet"
		if done, ok := y.done(at(c.now)); ok {
			got = done.Sub(begin).String()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if got := newSyncing(begin, sessions).limit().Sub(begin); got != 30*time.Second {
		t.Errorf("limit %s", got)
	}
	if s := strings.TrimSpace(state(nil, nil).String()); s != "" {
		t.Errorf("empty state: %q", s)
	}
}
