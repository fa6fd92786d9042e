package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A State is the whole BGP configuration of this node, routes included. It is a plain value: do not
// change one that has been passed on, but build another.
type State struct {
	ASN      uint32     // the node's own AS number, 1 to 4294967295; sessions may have others
	RouterID netip.Addr // an IPv4 address (RFC 4271 §4.2); sessions may have others
	Sessions []Session  // sorted by Name
	Routes   Routes

	// NextHop4 and NextHop6 are this node's addresses for routers whose session uses the other
	// family; invalid: none.
	NextHop4, NextHop6 netip.Addr

	// Shutdown says that the routes will be withdrawn soon (RFC 8326): they carry the community
	// GRACEFUL_SHUTDOWN, and the lowest preference to iBGP routers. So routers choose other paths
	// while these still work.
	Shutdown bool
}

// A Session is a session to one router.
type Session struct {
	Name          string     // a unique name for operators
	PeerAddress   netip.Addr // with a zone when link-local; invalid with Interface
	Interface     string     // the router sends advertisements on this link
	PeerPort      uint16     // 0: 179
	PeerASN       uint32
	External      bool       // PeerASN is 0: any AS number but the local one is accepted
	LocalASN      uint32     // 0: the State's
	RouterID      netip.Addr // invalid: the State's
	SourceAddress netip.Addr // invalid: the kernel chooses
	// SourceInterface has the local address, instead of SourceAddress: the one in the router's
	// network if there is one, otherwise the interface's first.
	SourceInterface string
	// NextHop is where this router should send packets to addresses of the family that the session
	// does not use; invalid: the State's. For the session's own family it is the local end of the
	// connection, which the router can reach also on a node with several networks.
	NextHop netip.Addr

	// Device is the interface or VRF of the session; empty: the node's routes decide.
	Device string
	// Passive waits until the router connects to port 179, and never connects itself.
	Passive bool

	HoldTime      time.Duration // 0: 90 s; at least 3 s; whole seconds (RFC 4271 §4.2)
	KeepaliveTime time.Duration // 0: a third of HoldTime
	ConnectTime   time.Duration // the longest interval between attempts; the first follow faster; 0: 5 s

	EBGPMultihopTTL uint8 // 0: the peer is directly connected

	// TTLSecurityHops makes the kernel drop packets from more than this many hops away before TCP
	// sees them: 1 for a neighbour, at most 254; 0: no check. The router must do the same (GTSM,
	// RFC 5082).
	TTLSecurityHops uint8

	// Password authenticates the TCP segments of both sides (TCP MD5, RFC 2385), at most 80 bytes;
	// empty: no authentication.
	Password Password

	BFD BFD // zero: only the hold timer detects a silent router

	// GracefulRestart asks the router to keep the routes for RestartTime (whole seconds, 2 to 4095;
	// 0: 30 s) when this process ends (RFC 4724).
	GracefulRestart bool
	RestartTime     time.Duration

	// Weights says that the router gets the routes' weights. Only this field can change without
	// resetting the session.
	Weights bool
}

// A Route is a prefix that this node announces as its own.
type Route struct {
	Prefix netip.Prefix
	// Peers are the sessions whose routers receive the route.
	Peers Peers
	// Attributes are the attributes for each of them.
	Attributes PeerAttributes
	// Weight is this node's share of the prefix's traffic, relative to the weights of other nodes;
	// 0: none is sent, and a router balances evenly if any path lacks its weight. Only sessions
	// with Weights send it.
	Weight uint32
}

// Routes are in the order of their prefixes. Each prefix is there once.
type Routes = sortedset.Set[Route]

// RoutesOf returns the routes of a list. Of several with the same prefix, the first one counts.
func RoutesOf(list ...Route) Routes { return sortedset.SetOf(list, compareRoutes) }

// String describes the state to an operator, one line for each fact. Golden files and logs use it.
func (s State) String() string {
	var b strings.Builder
	for _, p := range s.Sessions {
		fmt.Fprintf(&b, "session %s: AS%d to %s at %s%s\n", p.Name, p.localASN(s), p.peerAS(), p.routerText(),
			p.weightsText())
	}
	if s.Shutdown {
		fmt.Fprintln(&b, "graceful shutdown")
	}
	for r := range s.Routes.All() {
		fmt.Fprintf(&b, "announce %s\n", r)
	}
	return b.String()
}

func (s Session) localASN(st State) uint32 { return cmp.Or(s.LocalASN, st.ASN) }

// routerText is the router's address, or the link that it is on.
func (s Session) routerText() string {
	if s.Interface != "" {
		return "the router on " + s.Interface
	}
	return s.PeerAddress.String()
}

// peerAS describes the router's AS.
func (s Session) peerAS() string {
	if s.External {
		return "any other AS"
	}
	return fmt.Sprintf("AS%d", s.PeerASN)
}

func (s Session) weightsText() string {
	if s.Weights {
		return ", with weights"
	}
	return ""
}

// resolved returns s with the defaults of the State, and without the fields that can change while
// the connection stays. Sessions that are equal when resolved can use the same connection.
func (s Session) resolved(st State) Session {
	s.LocalASN, s.RouterID = s.localASN(st), cmp.Or(s.RouterID, st.RouterID)
	if s.PeerAddress.Is4() {
		s.NextHop = cmp.Or(s.NextHop, st.NextHop6)
	} else {
		s.NextHop = cmp.Or(s.NextHop, st.NextHop4)
	}
	s.Weights = false
	return s
}

// resolvedSessions returns all sessions, resolved.
func (s State) resolvedSessions() []Session {
	sessions := make([]Session, len(s.Sessions))
	for i, x := range s.Sessions {
		sessions[i] = x.resolved(s)
	}
	return sessions
}

func (r Route) String() string {
	text := r.Prefix.String()
	if r.Weight != 0 {
		text += fmt.Sprintf(" weight %d", r.Weight)
	}
	if r.Attributes.Differ() {
		return text + " " + r.Attributes.String()
	}
	if r.Peers != "" {
		text += " to " + r.Peers.String()
	}
	if r.Attributes != (PeerAttributes{}) {
		text += " " + r.Attributes.String()
	}
	return text
}

func (s Session) port() uint16 { return cmp.Or(s.PeerPort, defaultPort) }

func (s Session) holdTime() time.Duration { return cmp.Or(s.HoldTime, defaultHoldTime) }

// keepaliveTime is in whole seconds, because GoBGP's timer is.
func (s Session) keepaliveTime() time.Duration {
	return cmp.Or(s.KeepaliveTime, max(s.holdTime()/3, time.Second).Truncate(time.Second))
}

func (s Session) connectTime() time.Duration { return cmp.Or(s.ConnectTime, defaultConnectTime) }

// compareRoutes is a faster netip.Prefix.Compare, for prefixes without bits beyond their length, as
// routes have. Set calls it for every route.
func compareRoutes(a, b Route) int {
	if c := a.Prefix.Addr().Compare(b.Prefix.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits())
}
