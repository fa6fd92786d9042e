package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// GoBGP's own identity, which no router sees: each session has its own AS number, and the wire
// writes the session's router ID into its OPEN. To change this identity, GoBGP would have to
// restart with all sessions. No router uses these two values, so GoBGP detects no collision.
const (
	engineASN      = 23456 // RFC 6793 reserves it
	engineRouterID = "240.0.0.1"
)

// An engine is one GoBGP server. It neither listens nor dials: it is given connections.
type engine struct {
	gobgp *server.BgpServer
	conns chan net.Conn
	// numbers are the routers' numbers in marks; see targets.
	numbers map[netip.Addr]uint32
	// neighborAddrs maps a router's address or interface to its address in GoBGP; see neighborAddr.
	neighborAddrs map[string]netip.Addr
	// sets are the sets of attributes that GoBGP has a statement for, with their numbers, which are
	// never reused. See forget for manySets.
	sets     map[attributeSet]uint32
	lastSet  uint32
	manySets int
	// noBandwidth are the routers in noBandwidthSet; see setNoBandwidth.
	noBandwidth []netip.Addr
	log         *gobgpLog
}

func startEngine(ctx context.Context, log *slog.Logger) (*engine, error) {
	e := &engine{
		conns: make(chan net.Conn), numbers: map[netip.Addr]uint32{}, neighborAddrs: map[string]netip.Addr{},
		sets: map[attributeSet]uint32{}, manySets: leastSets, log: newGobgpLog(log),
	}
	e.gobgp = server.NewBgpServer(server.LoggerOption(slog.New(e.log), nil))
	if err := acceptFrom(e.gobgp, e.conns); err != nil {
		return nil, err
	}
	go e.gobgp.Serve()
	if err := e.configure(ctx); err != nil {
		e.log.mute()
		e.gobgp.Stop()
		return nil, fmt.Errorf("GoBGP: %w", err)
	}
	return e, nil
}

// configure starts BGP in GoBGP, with the sets and policies for announcements.
func (e *engine) configure(ctx context.Context) error {
	global := &api.Global{
		Asn:        engineASN,
		RouterId:   engineRouterID,
		ListenPort: -1,
		Families:   []uint32{0, 1}, // GoBGP's own numbers for IPv4 and IPv6 unicast
	}
	if err := e.gobgp.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		return err
	}
	if err := e.define(ctx, largeCommunitySet(markedSet, "^"+mark(markAny)+"$"),
		largeCommunitySet(everyMarkSet, everyMark), neighborSet(noBandwidthSet, noRouter)); err != nil {
		return err
	}
	imports := []*api.Policy{policy("import", importStatement())}
	for _, p := range slices.Concat(imports, exportPolicies(true)) {
		if err := e.gobgp.AddPolicy(ctx, &api.AddPolicyRequest{Policy: p}); err != nil {
			return err
		}
	}
	if err := e.assign(ctx, api.PolicyDirection_POLICY_DIRECTION_IMPORT, api.RouteAction_ROUTE_ACTION_REJECT,
		imports); err != nil {
		return err
	}
	return e.setShutdown(ctx, false)
}

// importStatement accepts this node's own routes, to which GoBGP also applies the import policy.
// All others are rejected, so nothing is passed on from one router to another.
func importStatement() *api.Statement {
	return &api.Statement{
		Name:       "ours",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}
}

// exportPolicy is the policy with exportStatements.
const exportPolicy = "export"

// A marking is what is added to routes in GoBGP's table, besides their own attributes.
type marking struct {
	targets  map[string]uint32 // the routers' numbers by session
	weightAS uint16            // the AS number of weights; 0: there are none
	// policyVersion changes with the export policy. GoBGP sends an equal route no second time, so
	// the version is part of each route, as a mark that no statement matches.
	policyVersion uint32
}

func (m marking) policyVersionMark() []*packet.LargeCommunity {
	if m.policyVersion == 0 {
		return nil
	}
	return []*packet.LargeCommunity{{ASN: markASN, LocalData1: m.policyVersion, LocalData2: markPolicyVersion}}
}

// announce puts routes into GoBGP's table. They replace those of the same prefix.
func (e *engine) announce(ctx context.Context, routes []Route, m marking) error {
	if len(routes) == 0 {
		return nil
	}
	paths, err := paths(routes)
	if err != nil {
		return err
	}
	if err := e.attribute(ctx, paths, routes, m); err != nil {
		return err
	}
	_, err = e.gobgp.AddPath(apiutil.AddPathRequest{Paths: paths})
	return err
}

func (e *engine) withdraw(routes []Route) error {
	if len(routes) == 0 {
		return nil
	}
	paths, err := paths(routes)
	if err != nil {
		return err
	}
	return e.gobgp.DeletePath(apiutil.DeletePathRequest{Paths: paths})
}

func paths(routes []Route) ([]*apiutil.Path, error) {
	paths := make([]*apiutil.Path, 0, len(routes))
	now := time.Now().Unix()
	for _, r := range routes {
		p, err := path(r)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", r, err)
		}
		p.Age = now
		paths = append(paths, p)
	}
	return paths, nil
}

// attribute adds attributes and marks to the paths of routes. Routes with equal attributes share
// them.
func (e *engine) attribute(ctx context.Context, paths []*apiutil.Path, routes []Route, m marking) error {
	type kind struct {
		peers      Peers
		attributes PeerAttributes
		weight     uint32
	}
	made := map[kind][]packet.PathAttributeInterface{}
	for i, r := range routes {
		k := kind{r.Peers, r.Attributes, r.Weight}
		attrs, ok := made[k]
		if !ok {
			shared, rest := r.Attributes.split()
			marks, err := e.ensureSets(ctx, r.Attributes.keys(rest, m.targets))
			if err != nil {
				return fmt.Errorf("route %s: %w", r, err)
			}
			attrs = shared.pathAttributes(slices.Concat(r.Peers.marks(m.targets), marks, m.policyVersionMark()))
			if r.Weight != 0 && m.weightAS != 0 {
				attrs = append(attrs, r.linkBandwidth(m.weightAS))
			}
			made[k] = attrs
		}
		paths[i].Attrs = append(paths[i].Attrs, attrs...)
	}
	return nil
}

// path translates one route. Its next hop is unspecified: GoBGP writes its own address on each
// session, and the session's wire replaces that by the real next hop.
func path(r Route) (*apiutil.Path, error) {
	nlri, err := packet.NewIPAddrPrefix(r.Prefix)
	if err != nil {
		return nil, err
	}
	p := &apiutil.Path{
		Family: familyOf(r.Prefix.Addr()),
		Nlri:   nlri,
		Attrs:  []packet.PathAttributeInterface{packet.NewPathAttributeOrigin(packet.BGP_ORIGIN_ATTR_TYPE_IGP)},
	}
	var attr packet.PathAttributeInterface
	if p.Family == packet.RF_IPv4_UC {
		attr, err = packet.NewPathAttributeNextHop(netip.IPv4Unspecified())
	} else {
		attr, err = packet.NewPathAttributeMpReachNLRI(p.Family, []packet.PathNLRI{{NLRI: nlri}},
			netip.IPv6Unspecified())
	}
	p.Attrs = append(p.Attrs, attr)
	return p, err
}

func familyOf(a netip.Addr) packet.Family {
	if a.Is4() {
		return packet.RF_IPv4_UC
	}
	return packet.RF_IPv6_UC
}

// A neighbor is GoBGP's configuration for one connection.
type neighbor struct {
	conf          Session
	remote, local netip.Addr // of the connection, as the wire reports
	restarting    bool       // RFC 4724: this node restarted, and kept forwarding
}

func (n neighbor) api() *api.Peer {
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: n.remote.String(),
			PeerAsn:         n.conf.PeerASN,
			LocalAsn:        n.conf.LocalASN,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:          uint64(n.conf.holdTime() / time.Second),
			KeepaliveInterval: uint64(n.conf.keepaliveTime() / time.Second),
		}},
		Transport: &api.Transport{LocalAddress: n.local.String(), PassiveMode: true},
		EbgpMultihop: &api.EbgpMultihop{
			Enabled:     n.conf.EBGPMultihopTTL != 0,
			MultihopTtl: uint32(n.conf.EBGPMultihopTTL),
		},
	}
	// GoBGP sets the TTL of the connection again, which would undo what dial did.
	if n.conf.TTLSecurityHops != 0 {
		p.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: uint32(n.conf.leastTTL())}
	}
	p.GracefulRestart = n.gracefulRestart()
	for _, f := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config: &api.AfiSafiConfig{Family: apiFamily(f), Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{
				Config: &api.MpGracefulRestartConfig{Enabled: n.conf.GracefulRestart}},
		})
	}
	return p
}

func (e *engine) addNeighbor(ctx context.Context, n neighbor) error {
	return e.gobgp.AddPeer(ctx, &api.AddPeerRequest{Peer: n.api()})
}

// deleteNeighbor sends a Cease if the session is established, without waiting until it is sent.
func (e *engine) deleteNeighbor(ctx context.Context, remote netip.Addr) error {
	return e.gobgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: remote.String()})
}

// handOver gives GoBGP a connection to a neighbour. The neighbour must be Active: while it is Idle,
// GoBGP closes connections.
func (e *engine) handOver(ctx context.Context, conn net.Conn) error {
	select {
	case e.conns <- conn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// state returns the neighbour's state in all of GoBGP. It is polled, because GoBGP reports a change
// to watchers before acting on it: a new route in between would never be sent.
func (e *engine) state(ctx context.Context, remote netip.Addr) (SessionState, error) {
	state := Idle
	err := e.gobgp.ListPeer(ctx, &api.ListPeerRequest{Address: remote.String()}, func(p *api.Peer) {
		state = sessionStates[p.GetState().GetSessionState()]
	})
	return state, err
}

var sessionStates = map[api.PeerState_SessionState]SessionState{
	api.PeerState_SESSION_STATE_IDLE:        Idle,
	api.PeerState_SESSION_STATE_CONNECT:     Connect,
	api.PeerState_SESSION_STATE_ACTIVE:      Active,
	api.PeerState_SESSION_STATE_OPENSENT:    OpenSent,
	api.PeerState_SESSION_STATE_OPENCONFIRM: OpenConfirm,
	api.PeerState_SESSION_STATE_ESTABLISHED: Established,
}

// stop ends all sessions and waits until everything has been sent. With keep, sessions with
// graceful restart end without a NOTIFICATION, and their routers keep the routes.
func (e *engine) stop(ctx context.Context, keep bool) error {
	done := make(chan error, 1)
	go func() {
		err := e.gobgp.StopBgp(context.WithoutCancel(ctx), &api.StopBgpRequest{AllowGracefulRestart: keep})
		e.log.mute() // the next call complains that GoBGP has stopped already
		e.gobgp.Stop()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		// This happened once, on a busy host, and was not explained. The stacks show where GoBGP
		// hangs.
		return fmt.Errorf("GoBGP does not stop: %w\n%s", ctx.Err(), goroutines())
	}
}

// goroutines returns the stacks of all goroutines, as far as they fit.
func goroutines() []byte {
	stacks := make([]byte, 256<<10)
	return stacks[:runtime.Stack(stacks, true)]
}
