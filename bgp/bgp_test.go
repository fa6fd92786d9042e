package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Status says what the router says.
func TestStatusIsWhatTheRouterHas(t *testing.T) {
	r := startRouter(t, routerConf{only4: true})
	s := newServer(t, Options{})
	_, err := s.Set(t.Context(), state([]Session{r.session("tor1")},
		routes("192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128")))
	must(t, err)
	eventually(t, "routes", func() bool { return strings.Count(r.adjIn(), "\n") == 2 })
	// See TestMetrics.
	eventually(t, "session", func() bool { return s.sessionStatus("tor1").State == Established })

	st := s.sessionStatus("tor1")
	if st.State != Established || st.Flaps != 0 || st.LocalAddress != r.peer ||
		st.PeerRouterID != netip.MustParseAddr("10.255.0.1") {
		t.Errorf("status: %+v", st)
	}
	if got := strings.Trim(fmt.Sprint(st.Prefixes), "[]"); st.Advertised != 2 || got != "192.0.2.1/32 192.0.2.2/32" {
		t.Errorf("advertised %d: %s", st.Advertised, got)
	}
	want := []Omission{
		{netip.MustParsePrefix("2001:db8::1/128"), "the router does not take IPv6 routes on this session"},
	}
	if st.LeftOut != 1 || !slices.Equal(st.Omissions, want) {
		t.Errorf("left out %d: %v", st.LeftOut, st.Omissions)
	}
}

func TestSessionKinds(t *testing.T) {
	for _, c := range []struct {
		name   string
		router routerConf
		change func(*Session)
		want   string
	}{
		{"own AS number per session", routerConf{peerASN: 65099}, func(s *Session) { s.LocalASN = 65099 },
			"192.0.2.1/32 via 127.0.0.1 as [65099]\n2001:db8::1/128 via 2001:db8::a as [65099]\n"},
		{"iBGP by the session's AS number", routerConf{asn: 65099, peerASN: 65099},
			func(s *Session) { s.LocalASN = 65099 },
			"192.0.2.1/32 via 127.0.0.1 as [] localpref 100\n2001:db8::1/128 via 2001:db8::a as [] localpref 100\n"},
		{"AS numbers of four octets", routerConf{asn: 4200000001, peerASN: 4200000002},
			func(s *Session) { s.LocalASN = 4200000002 },
			"192.0.2.1/32 via 127.0.0.1 as [4200000002]\n2001:db8::1/128 via 2001:db8::a as [4200000002]\n"},
		{"multihop", routerConf{}, func(s *Session) { s.EBGPMultihopTTL = 3 },
			"192.0.2.1/32 via 127.0.0.1 as [65010]\n2001:db8::1/128 via 2001:db8::a as [65010]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRouter(t, c.router)
			s := newServer(t, Options{})
			conf := r.session("tor1")
			c.change(&conf)
			_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32", "2001:db8::1/128")))
			must(t, err)
			eventually(t, c.want, func() bool { return r.adjIn() == c.want })
		})
	}
}

// IPv6 transport, with a link-local address and an interface too. The router takes
// IPv6 next hops for IPv4, as GoBGP always does.
func TestIPv6Transport(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		node := nstest.Node(t)
		nstest.Link(t, node, "uplink", node, "router")
		node.Addr("uplink", "fe80::1/64")
		node.Addr("router", "fe80::2/64")
		node.Addr("lo", "2001:db8::a/128", "2001:db8::b/128")
		for _, c := range []struct{ router, peer, want string }{
			{"2001:db8::b", "2001:db8::a", "192.0.2.1/32 via 2001:db8::a as [65010]\n2001:db8::1/128 via " +
				"2001:db8::a as [65010]\n"},
			{"fe80::2%router", "fe80::1%router",
				"192.0.2.1/32 via fe80::1 as [65010]\n2001:db8::1/128 via fe80::1 as [65010]\n"},
		} {
			t.Run(c.router, func(t *testing.T) {
				r := startRouter(t, routerConf{addr: c.router, peer: c.peer})
				s := newServer(t, Options{})
				conf := r.session("tor1")
				if conf.PeerAddress.Zone() != "" {
					conf.PeerAddress = conf.PeerAddress.WithZone("uplink")
					conf.SourceAddress = netip.MustParseAddr("fe80::1")
				}
				have, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32", "2001:db8::1/128")))
				must(t, err)
				if got := joined(have); got != "192.0.2.1/32 2001:db8::1/128" {
					t.Errorf("have %s", got)
				}
				eventually(t, c.want, func() bool { return r.adjIn() == c.want })
			})
		}
	})
}

// Nothing that a router sends stays here or reaches another router.
func TestImportsNothing(t *testing.T) {
	one := startRouter(t, routerConf{addr: "127.0.0.2"})
	two := startRouter(t, routerConf{addr: "127.0.0.3", asn: 65002, id: "10.255.0.2"})
	s := newServer(t, Options{})
	p, err := paths(routes("192.0.2.1/32", "198.51.100.0/24"))
	must(t, err)
	_, err = one.gobgp.AddPath(apiutil.AddPathRequest{Paths: p})
	must(t, err)
	_, err = s.Set(t.Context(), state([]Session{one.session("one"), two.session("two")}, routes("192.0.2.1/32")))
	must(t, err)
	// GoBGP gets to see nothing of it.
	eventually(t, "their routes here", func() bool { return s.sessionStatus("one").IgnoredUpdates > 0 })
	eventually(t, "our route there", func() bool { return two.adjIn() == "192.0.2.1/32 via 127.0.0.1 as [65010]\n" })

	if got := table(t, s.engine.gobgp, api.TableType_TABLE_TYPE_GLOBAL, netip.Addr{}); !slices.Equal(got,
		[]string{"192.0.2.1/32"}) {
		t.Errorf("table: %v", got)
	}
	if got := table(t, s.engine.gobgp, api.TableType_TABLE_TYPE_ADJ_IN, one.addr); len(got) != 0 {
		t.Errorf("kept of router one: %v", got)
	}
	if got := table(t, s.engine.gobgp, api.TableType_TABLE_TYPE_ADJ_OUT, two.addr); !slices.Equal(got,
		[]string{"192.0.2.1/32"}) {
		t.Errorf("told router two: %v", got)
	}
	// Our own withdrawal does not uncover theirs.
	_, err = s.Set(t.Context(), state([]Session{one.session("one"), two.session("two")}, nil))
	must(t, err)
	eventually(t, "withdrawal", func() bool { return two.adjIn() == "" })
	if got := table(t, s.engine.gobgp, api.TableType_TABLE_TYPE_GLOBAL, netip.Addr{}); len(got) != 0 {
		t.Errorf("table: %v", got)
	}
}

func table(t *testing.T, g *server.BgpServer, kind api.TableType, peer netip.Addr) (prefixes []string) {
	t.Helper()
	req := apiutil.ListPathRequest{TableType: kind, Family: packet.RF_IPv4_UC}
	if peer.IsValid() {
		req.Name = peer.String()
	}
	// An error means that the neighbour is not there yet, or no longer.
	_ = listPath(g, req, func(prefix packet.NLRI, _ []*apiutil.Path) { prefixes = append(prefixes, prefix.String()) })
	slices.Sort(prefixes)
	return prefixes
}

// A bad session is named, and the others go on. So does everything when the
// State itself turns bad.
func TestInvalidSessionsDoNotStopOthers(t *testing.T) {
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	bad := r.session("bad")
	bad.PeerAddress, bad.PeerASN, bad.HoldTime = netip.MustParseAddr("127.0.0.7"), 0, 2*time.Second
	want := state([]Session{bad, r.session("tor1")}, routes("192.0.2.1/24", "192.0.2.2/32"))

	have, err := s.Set(t.Context(), want)
	const wantErr = `session bad: PeerASN 0: must be 1 to 4294967295
session bad: HoldTime 2s: must be whole seconds, 3 s to 65535 s (RFC 4271 §4.2)
route 192.0.2.1/24: has bits beyond its length, 192.0.2.0/24 would be right`
	if err == nil || err.Error() != wantErr {
		t.Errorf("error:\n%v\nwant:\n%s", err, wantErr)
	}
	if got := joined(have); got != "192.0.2.2/32" {
		t.Errorf("have %s", got)
	}
	eventually(t, "the good session", func() bool { return r.adjIn() == "192.0.2.2/32 via 127.0.0.1 as [65010]\n" })
	if got := strings.Join(s.Status().Problems, "\n"); got != wantErr {
		t.Errorf("problems in status:\n%s", got)
	}
	if _, again := s.Set(t.Context(), want); again == nil || again.Error() != wantErr {
		t.Errorf("the same State again: %v", again)
	}

	broken := state([]Session{r.session("tor1")}, routes("192.0.2.3/32"))
	broken.RouterID = netip.MustParseAddr("2001:db8::1")
	// While the session comes up, the change is left to the background.
	eventually(t, "the new routes with a bad router ID", func() bool {
		have, err = s.Set(t.Context(), broken)
		if err == nil || err.Error() != "router ID 2001:db8::1: must be an IPv4 address (RFC 4271 §4.2)" {
			t.Fatalf("bad router ID: %v", err)
		}
		return joined(have) == "192.0.2.3/32"
	})
	eventually(t, "the open session", func() bool { return r.adjIn() == "192.0.2.3/32 via 127.0.0.1 as [65010]\n" })
	if r.ups.Load() != 1 {
		t.Errorf("session opened %d times", r.ups.Load())
	}
}

// An AS number and a router ID are a session's: the router hears those of the
// session, else the State's, and another one there resets the sessions that it
// concerns, and no other.
func TestIdentityChanges(t *testing.T) {
	ids := make(chan string, 10)
	script := func(c *fakeConn) {
		o := c.read().Body.(*packet.BGPOpen)
		ids <- fmt.Sprintf("AS%d %s", o.MyAS, o.ID)
		c.send(openMessage(65001))
		c.send(packet.NewBGPKeepAliveMessage())
		c.readAll()
	}
	common, own := startFake(t, script).session(), startFakeAt(t, "127.0.0.6", script).session()
	own.Name, own.LocalASN, own.RouterID = "own", 65099, netip.MustParseAddr("10.255.0.99")
	s := newServer(t, Options{})
	for _, c := range []struct {
		asn    uint32
		id     string
		change func()
		want   []string
	}{
		{65010, "10.255.0.10", nil, []string{"AS65010 10.255.0.10", "AS65099 10.255.0.99"}},
		{65010, "10.255.0.11", nil, []string{"AS65010 10.255.0.11"}},
		{65011, "10.255.0.11", nil, []string{"AS65011 10.255.0.11"}},
		{65011, "10.255.0.11", func() { own.LocalASN = 65098 }, []string{"AS65098 10.255.0.99"}},
		// What was the State's is said by the session: the same on the wire.
		{65012, "10.255.0.12", func() {
			common.LocalASN, common.RouterID = 65011, netip.MustParseAddr("10.255.0.11")
		}, nil},
	} {
		if c.change != nil {
			c.change()
		}
		want := State{
			ASN: c.asn, RouterID: netip.MustParseAddr(c.id), Sessions: []Session{own, common},
			Routes: RoutesOf(routes("192.0.2.1/32")...),
		}
		_, err := s.Set(t.Context(), want)
		must(t, err)
		var got []string
		for range c.want {
			got = append(got, <-ids)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("AS%d %s: the routers heard %v, want %v", c.asn, c.id, got, c.want)
		}
		eventually(t, "sessions", func() bool {
			return s.sessionStatus("tor1").State == Established && s.sessionStatus("own").State == Established
		})
	}
	if len(ids) != 0 {
		t.Errorf("and then %s", <-ids)
	}
	if st := s.Status(); st.ASN != 65012 || s.sessionStatus("own").LocalRouterID != own.RouterID {
		t.Errorf("status: %+v", st)
	}
}

// With everything listening that a Server has, and routers that refuse.
func TestListensOnNothing(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		s := newServer(t, Options{})
		conf := Session{
			Name: "tor1", PeerAddress: netip.MustParseAddr("127.0.0.2"), PeerASN: 65001,
			ConnectTime: 10 * time.Millisecond,
		}
		_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
		must(t, err)
		eventually(t, "refused", func() bool { return s.sessionStatus("tor1").LastError != "" })
		for _, file := range []string{"tcp", "tcp6", "udp", "udp6"} {
			b, err := os.ReadFile("/proc/net/" + file)
			must(t, err)
			for _, line := range strings.Split(string(b), "\n")[1:] {
				// 0A is LISTEN; a bound UDP socket is 07.
				if f := strings.Fields(line); len(f) > 3 && (f[3] == "0A" || f[3] == "07") {
					t.Errorf("listens: %s %s", file, line)
				}
			}
		}
	})
}

// Close withdraws, or leaves the routes with routers that have graceful restart.
func TestClose(t *testing.T) {
	for _, c := range []struct {
		name     string
		graceful bool
		mode     CloseMode
		kept     bool
	}{
		{"withdraw", false, Withdraw, false},
		{"withdraw with graceful restart", true, Withdraw, false},
		{"restart without graceful restart", false, Restart, false},
		{"restart", true, Restart, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRouter(t, routerConf{graceful: c.graceful})
			s := newServer(t, Options{})
			conf := r.session("tor1")
			conf.GracefulRestart = true
			_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
			must(t, err)
			eventually(t, "route", func() bool {
				return len(table(t, r.gobgp, api.TableType_TABLE_TYPE_GLOBAL, netip.Addr{})) == 1
			})
			must(t, s.Close(t.Context(), c.mode))
			eventually(t, "session gone", func() bool { return !r.established() })
			eventually(t, "routes kept or gone", func() bool {
				return (len(table(t, r.gobgp, api.TableType_TABLE_TYPE_GLOBAL, netip.Addr{})) == 1) == c.kept
			})
			if _, err := s.Set(t.Context(), state(nil, nil)); err == nil {
				t.Error("Set after Close: no error")
			}
		})
	}
}

// A restarted speaker keeps its routes in a router, and sends all in time
// although a second router is dead or does not answer.
func TestRestart(t *testing.T) {
	for _, c := range []struct {
		name  string
		other func(t *testing.T) netip.AddrPort
		limit time.Duration // from established to End-of-RIB
	}{
		{"second router dead", func(t *testing.T) netip.AddrPort {
			a := netip.MustParseAddr("127.0.0.3")
			return netip.AddrPortFrom(a, freePort(t, a))
		}, 500 * time.Millisecond},
		// Here GoBGP waits for the silent router until the deferral time is over.
		{"second router silent", silentRouter, 1500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRouter(t, routerConf{graceful: true})
			other := c.other(t)
			dead := Session{Name: "dead", PeerAddress: other.Addr(), PeerPort: other.Port(), PeerASN: 65002,
				ConnectTime: 50 * time.Millisecond, GracefulRestart: true, RestartTime: 2 * time.Second}
			alive := r.session("alive")
			alive.GracefulRestart = true
			want := state([]Session{alive, dead}, routes("192.0.2.1/32", "2001:db8::1/128"))
			gained, lost := r.countChanges()

			first := newServer(t, Options{})
			_, err := first.Set(t.Context(), want)
			must(t, err)
			eventually(t, "first End-of-RIB", func() bool {
				return gained.Load() == 2 && !first.sessionStatus("alive").EndOfRIB.IsZero()
			})
			must(t, first.Close(t.Context(), Restart))
			eventually(t, "session gone", func() bool { return !r.established() })

			second := newServer(t, Options{Restarting: true})
			begin := time.Now()
			_, err = second.Set(t.Context(), want)
			must(t, err)
			if _, ok := second.Synced(); ok {
				t.Error("synced before anything was sent")
			}
			eventually(t, "second End-of-RIB", func() bool { return !second.sessionStatus("alive").EndOfRIB.IsZero() })
			st := second.sessionStatus("alive")
			took := st.EndOfRIB.Sub(st.Since)
			t.Logf("up after %s, End-of-RIB %s later", st.Since.Sub(begin), took)
			if took > c.limit || !st.GracefulRestart {
				t.Errorf("End-of-RIB after %s, graceful restart %v", took, st.GracefulRestart)
			}
			eventually(t, "synced", func() bool { _, ok := second.Synced(); return ok })
			at, _ := second.Synced()
			if limit := begin.Add(dead.restartTime()); at.Before(limit.Truncate(time.Millisecond)) ||
				at.Before(st.EndOfRIB) {
				t.Errorf("synced at %s, the dead router gives up at %s, End-of-RIB at %s", at, limit, st.EndOfRIB)
			}
			if n := lost.Load(); n != 0 {
				t.Errorf("the router lost a route %d times", n)
			}
		})
	}
}

// countChanges counts the routes that enter and leave the router's own table from
// now on.
func (r *router) countChanges() (gained, lost *atomic.Int32) {
	gained, lost = new(atomic.Int32), new(atomic.Int32)
	must(r.t, r.gobgp.WatchEvent(context.Background(), server.WatchEventMessageCallbacks{
		OnBestPath: func(paths []*apiutil.Path, _ time.Time) {
			// As in listPath: GoBGP has read the paths, and does not report it.
			_, _ = r.gobgp.GetBgp(context.Background(), &api.GetBgpRequest{})
			for _, p := range paths {
				if p.Withdrawal {
					lost.Add(1)
				} else {
					gained.Add(1)
				}
			}
		},
	}, server.WatchBestPath(false)))
	return gained, lost
}

// silentRouter takes connections and never says a word.
func silentRouter(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.4:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestPacing(t *testing.T) {
	p := pacing{limit: time.Second}
	var total time.Duration
	for i := range 20 {
		d := p.after(0)
		if d < 75*time.Millisecond || d > time.Second || i > 10 && d < 750*time.Millisecond {
			t.Errorf("pause %d: %s", i, d)
		}
		total += d
	}
	if total < 10*time.Second {
		t.Errorf("20 attempts in %s", total)
	}
	if d := p.after(500 * time.Millisecond); d < 250*time.Millisecond || d > 500*time.Millisecond {
		t.Errorf("after an attempt of half a second: %s", d)
	}
	if d := p.after(time.Minute); d != 0 || p.last != firstPause {
		t.Errorf("after a long session: %s, then %s", d, p.last)
	}
}

// A router that does not take the end of its session holds up neither Set nor the other sessions:
// its routes count until the session is closed, and a changed one opens after that.
func TestSetDoesNotWaitForClosing(t *testing.T) {
	stuck := make(chan struct{})
	r := startFake(t, func(c *fakeConn) {
		c.establish()
		<-stuck // reads nothing more, and closes nothing
	})
	defer close(stuck)
	s := newServer(t, Options{})
	want := state([]Session{r.session()}, routes("192.0.2.1/32"))
	_, err := s.Set(t.Context(), want)
	must(t, err)
	eventually(t, "session", func() bool { return s.sessionStatus("tor1").State == Established })
	closing := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.closing) > 0
	}

	changed := r.session()
	changed.HoldTime = 6 * time.Second
	want.Sessions = []Session{changed}
	_, err = s.Set(t.Context(), want)
	must(t, err)
	if !closing() {
		t.Fatal("Set has waited until the session was closed")
	}
	eventually(t, "the changed session", func() bool {
		return s.sessionStatus("tor1").State == Established && !closing()
	})

	want.Sessions = nil
	have, err := s.Set(t.Context(), want)
	must(t, err)
	if !closing() || joined(have) != "192.0.2.1/32" {
		t.Errorf("while the last session closes: have %q", joined(have))
	}
	eventually(t, "no session", func() bool {
		<-s.Changed()
		have, err := s.Set(t.Context(), want)
		must(t, err)
		return !closing() && have.Len() == 0
	})
}
