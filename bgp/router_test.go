package bgp

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// A router is a real GoBGP server that waits for us on a loopback address.
type router struct {
	t     *testing.T
	gobgp *server.BgpServer
	addr  netip.Addr
	port  uint16
	asn   uint32
	peer  netip.Addr // our address, as the router knows us
	ups   atomic.Int32
}

// A routerConf says how to make one. What is zero gets a default.
type routerConf struct {
	addr     string // 127.0.0.x or ::1
	peer     string // our address; default 127.0.0.1
	asn      uint32 // 65001
	peerASN  uint32 // 65010
	id       string // 10.255.0.1
	graceful bool
	only4    bool
	port     uint16
}

func startRouter(t *testing.T, c routerConf) *router {
	t.Helper()
	c.addr, c.peer = cmp.Or(c.addr, "127.0.0.2"), cmp.Or(c.peer, "127.0.0.1")
	c.asn, c.peerASN, c.id = cmp.Or(c.asn, 65001), cmp.Or(c.peerASN, 65010), cmp.Or(c.id, "10.255.0.1")
	r := &router{t: t, addr: netip.MustParseAddr(c.addr), peer: netip.MustParseAddr(c.peer), asn: c.asn}
	r.port = cmp.Or(c.port, freePort(t, r.addr))
	r.gobgp = server.NewBgpServer(server.LoggerOption(slog.New(slog.NewTextHandler(io.Discard, nil)), nil))
	go r.gobgp.Serve()
	ctx := t.Context()
	listen := c.addr
	if r.addr.Zone() != "" {
		listen = "::" // GoBGP cannot listen on an address with a zone
	}
	must(t, r.gobgp.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: c.asn, RouterId: c.id, ListenPort: int32(r.port), ListenAddresses: []string{listen},
	}}))
	t.Cleanup(r.gobgp.Stop)
	r.watch(c)
	must(t, r.gobgp.AddPeer(ctx, &api.AddPeerRequest{Peer: r.neighbor(c)}))
	// GoBGP turns a connection away while the neighbour is Idle.
	eventually(t, "router ready", func() bool { return r.state() == api.PeerState_SESSION_STATE_ACTIVE })
	return r
}

// watch counts sessions. It also creates the neighbour again after each of them,
// since GoBGP rejects all connections for 5 s; not with graceful restart, where
// the neighbour holds the stale routes.
func (r *router) watch(c routerConf) {
	spoke := false
	onUpdate := func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
		st := e.Peer.State.SessionState
		if st == packet.BGP_FSM_ESTABLISHED {
			r.ups.Add(1)
		}
		if st >= packet.BGP_FSM_OPENSENT {
			spoke = true
		}
		if st == packet.BGP_FSM_IDLE && spoke && !c.graceful {
			spoke = false
			ctx := context.Background()
			_ = r.gobgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: c.peer})
			_ = r.gobgp.AddPeer(ctx, &api.AddPeerRequest{Peer: r.neighbor(c)})
		}
	}
	must(r.t, r.gobgp.WatchEvent(context.Background(), server.WatchEventMessageCallbacks{OnPeerUpdate: onUpdate},
		server.WatchPeer()))
}

func (r *router) neighbor(c routerConf) *api.Peer {
	p := &api.Peer{
		Conf:            &api.PeerConf{NeighborAddress: c.peer, PeerAsn: c.peerASN},
		Transport:       &api.Transport{PassiveMode: true, LocalAddress: c.addr},
		Timers:          &api.Timers{Config: &api.TimersConfig{IdleHoldTimeAfterReset: 1}},
		GracefulRestart: &api.GracefulRestart{Enabled: c.graceful, RestartTime: 60},
	}
	for _, f := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
		if c.only4 && f != packet.RF_IPv4_UC {
			continue
		}
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: apiFamily(f), Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: c.graceful}},
		})
	}
	return p
}

func (r *router) state() (st api.PeerState_SessionState) {
	must(r.t, r.gobgp.ListPeer(r.t.Context(), &api.ListPeerRequest{Address: r.peer.String()}, func(p *api.Peer) {
		st = p.State.SessionState
	}))
	return st
}

func (r *router) established() bool {
	return r.state() == api.PeerState_SESSION_STATE_ESTABLISHED
}

// adjIn is what we told the router, a line per route, as an operator would read it.
func (r *router) adjIn() string {
	r.t.Helper()
	var lines []string
	for _, f := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
		req := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_ADJ_IN, Name: r.peer.String(), Family: f}
		_ = listPath(r.gobgp, req, func(prefix packet.NLRI, paths []*apiutil.Path) {
			for _, p := range paths {
				lines = append(lines, fmt.Sprintf("%s %s\n", prefix, attributes(p)))
			}
		})
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// listPath is ListPath, which reads GoBGP's paths after it has let go of them.
// The call that follows tells the race detector that this reading is over.
func listPath(g *server.BgpServer, req apiutil.ListPathRequest, fn func(packet.NLRI, []*apiutil.Path)) error {
	err := g.ListPath(req, fn)
	if _, e := g.GetBgp(context.Background(), &api.GetBgpRequest{}); e != nil {
		return e
	}
	return err
}

func attributes(p *apiutil.Path) string {
	var hop, asPath, pref, rest string
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *packet.PathAttributeNextHop:
			hop = a.Value.String()
		case *packet.PathAttributeMpReachNLRI:
			hop = a.Nexthop.String()
		case *packet.PathAttributeAsPath:
			asPath = packet.AsPathString(a)
		case *packet.PathAttributeLocalPref:
			pref = fmt.Sprintf(" localpref %d", a.Value)
		case *packet.PathAttributeMultiExitDisc:
			rest += fmt.Sprintf(" med %d", a.Value)
		case *packet.PathAttributeCommunities:
			var list []Community
			for _, c := range a.Value {
				list = append(list, Community(c))
			}
			rest += " community " + CommunitiesOf(list...).String()
		case *packet.PathAttributeLargeCommunities:
			rest += " large"
			for _, c := range a.Values {
				rest += " " + c.String()
			}
		case *packet.PathAttributeExtendedCommunities:
			for _, c := range a.Value {
				kind, subtype := c.GetTypes()
				rest += fmt.Sprintf(" extended %#02x %#02x %s", kind, subtype, c)
			}
		}
	}
	return fmt.Sprintf("via %s as [%s]%s%s", hop, asPath, pref, rest)
}

// session is ours to this router.
func (r *router) session(name string) Session {
	return Session{
		Name:          name,
		PeerAddress:   r.addr,
		PeerPort:      r.port,
		PeerASN:       r.asn,
		SourceAddress: r.peer,
		HoldTime:      9 * time.Second,
		ConnectTime:   50 * time.Millisecond,
	}
}

func freePort(t *testing.T, addr netip.Addr) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until ok, for as long as the slowest machine may take.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	within(t, time.Minute, what, ok)
}

func within(t testing.TB, d time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > d {
			t.Fatalf("%s: not within %s", what, d)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(begin)
}

// newServer makes a Server that logs to the test and is closed after it.
func newServer(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	s := New(o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx, Withdraw); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *Server) sessionStatus(name string) SessionStatus {
	for _, st := range s.Status().Sessions {
		if st.Name == name {
			return st
		}
	}
	return SessionStatus{}
}

func routes(prefixes ...string) []Route {
	rs := make([]Route, len(prefixes))
	for i, p := range prefixes {
		p, peers, _ := strings.Cut(p, " to ")
		p, weight, _ := strings.Cut(p, " weight ")
		if n, err := strconv.ParseUint(weight, 10, 32); err == nil {
			rs[i].Weight = uint32(n)
		}
		if peers != "" {
			rs[i].Peers = PeersOf(strings.Split(peers, "+")...)
		}
		rs[i].Prefix = netip.MustParsePrefix(p)
	}
	return rs
}

func state(sessions []Session, routes []Route) State {
	return State{ASN: 65010, RouterID: netip.MustParseAddr("10.255.0.10"), Sessions: sessions,
		Routes:   RoutesOf(routes...),
		NextHop4: netip.MustParseAddr("10.0.0.2"), NextHop6: netip.MustParseAddr("2001:db8::a")}
}
