package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// A State is everything that BGP should do on this node. It is a plain value:
// build a new one rather than change one that has been passed on.
type State struct {
	ASN      uint32     // the node's own AS number, 1 to 4294967295; sessions may have others
	RouterID netip.Addr // an IPv4 address (RFC 4271 §4.2); sessions may have others
	Sessions []Session  // sorted by Name
	Routes   []Route    // sorted by Prefix

	// NextHop4 and NextHop6 are this node's addresses, of each family, for routers
	// that are reached over the other one; invalid: none.
	NextHop4, NextHop6 netip.Addr

	// Shutdown says that the routes are about to go (RFC 8326): they carry the
	// community GRACEFUL_SHUTDOWN, and to iBGP routers the least preference, so that
	// routers take other paths while these still work.
	Shutdown bool
}

// A Session is a session to one router.
type Session struct {
	Name          string     // how people call it; unique
	PeerAddress   netip.Addr // with a zone when link-local; invalid with Interface
	Interface     string     // the router sends advertisements on this link
	PeerPort      uint16     // 0: 179
	PeerASN       uint32
	External      bool       // PeerASN is 0: any AS number but our own is right
	LocalASN      uint32     // 0: the State's
	RouterID      netip.Addr // invalid: the State's
	SourceAddress netip.Addr // invalid: the kernel chooses
	// SourceInterface has our address, in the place of SourceAddress: the one in
	// the router's network if there is one, else the interface's first.
	SourceInterface string
	// NextHop is where this router should send packets to addresses of the other
	// family than its own; invalid: the State's. For its own family it is our end of
	// the connection: on a node with several networks, that is what it can reach.
	NextHop netip.Addr

	// Device is the interface or the VRF that the session is in; empty: as the node's
	// routes say.
	Device string
	// Passive waits for the router to connect, to port 179, and never connects.
	Passive bool

	HoldTime      time.Duration // 0: 90 s; at least 3 s; whole seconds (RFC 4271 §4.2)
	KeepaliveTime time.Duration // 0: a third of HoldTime
	ConnectTime   time.Duration // the longest between two attempts, which follow faster at first; 0: 5 s

	EBGPMultihopTTL uint8 // 0: the peer is directly connected

	// TTLSecurityHops drops what has come further than this many hops, before TCP
	// sees it: 1 for a neighbour, at most 254; 0: nothing is dropped. The router
	// must do the same (GTSM, RFC 5082).
	TTLSecurityHops uint8

	// Password signs the TCP segments of both sides (TCP MD5, RFC 2385), at most 80
	// bytes; empty: none.
	Password Password

	BFD BFD // zero: the hold timer alone notices that the router is silent

	// GracefulRestart asks the router to keep our routes for RestartTime
	// (whole seconds, 2 to 4095; 0: 30 s) when this process goes away (RFC 4724).
	GracefulRestart bool
	RestartTime     time.Duration

	// Weights says that the router gets the routes' weights. Only this field can
	// change without a reset of the session.
	Weights bool
}

// A Route is a prefix that this node announces as its own.
type Route struct {
	Prefix netip.Prefix
	// Peers are the sessions whose routers get the route.
	Peers Peers
	// Attributes are those for each of them.
	Attributes PeerAttributes
	// Weight is this node's share of the prefix's traffic, in proportion to the
	// weights of other nodes; 0: none is sent, and a router balances evenly if any
	// path lacks its weight. Only sessions with Weights get it.
	Weight uint32
}

// String says what the state does, a line each, in an operator's words. Golden
// files and logs use it.
func (s State) String() string {
	var b strings.Builder
	for _, p := range s.Sessions {
		fmt.Fprintf(&b, "session %s: AS%d to %s at %s%s\n", p.Name, p.localASN(s), p.peerAS(), p.routerText(), p.weightsText())
	}
	if s.Shutdown {
		fmt.Fprintln(&b, "graceful shutdown")
	}
	for _, r := range s.Routes {
		fmt.Fprintf(&b, "announce %s\n", r)
	}
	return b.String()
}

func (s Session) localASN(st State) uint32 { return cmp.Or(s.LocalASN, st.ASN) }

// routerText names where the router is: its address, or the link that it is on.
func (s Session) routerText() string {
	if s.Interface != "" {
		return "the router on " + s.Interface
	}
	return s.PeerAddress.String()
}

// peerAS is the router's AS in words.
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

// resolved is s with the defaults of the State, and without the fields that can change while the
// connection stays. If two resolved Sessions are equal, one connection serves both.
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

// resolvedSessions are the sessions, each resolved.
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
