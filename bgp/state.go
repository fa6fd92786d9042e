package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// A State is everything that BGP shall do on this node. It is a plain value:
// build a new one rather than change one that has been passed on.
type State struct {
	ASN      uint32     // the node's own AS number, 1 to 4294967295
	RouterID netip.Addr // an IPv4 address (RFC 4271 §4.2)
	Sessions []Session  // sorted by Name
	Routes   []Route    // sorted by Prefix
}

// A Session is a session to one router.
type Session struct {
	Name          string     // how people call it; unique
	PeerAddress   netip.Addr // with a zone when link-local
	PeerPort      uint16     // 0: 179
	PeerASN       uint32
	LocalASN      uint32     // 0: the State's
	SourceAddress netip.Addr // invalid: the kernel chooses

	HoldTime      time.Duration // 0: 90 s; at least 3 s; whole seconds (RFC 4271 §4.2)
	KeepaliveTime time.Duration // 0: a third of HoldTime
	ConnectTime   time.Duration // the longest between two attempts, which follow faster at first; 0: 5 s

	EBGPMultihopTTL uint8 // 0: the peer is directly connected

	// GracefulRestart asks the router to keep our routes for RestartTime
	// (whole seconds, 2 to 4095; 0: 30 s) when this process goes away (RFC 4724).
	GracefulRestart bool
	RestartTime     time.Duration
}

// A Route is a prefix that this node announces as its own.
type Route struct {
	Prefix netip.Prefix
	// NextHop is where routers shall send the traffic; invalid: the session's
	// own source address. It matters for routes of the other address family
	// than the session's.
	NextHop netip.Addr
}

// String says what the state does, a line each, in an operator's words. Golden
// files and logs use it.
func (s State) String() string {
	var b strings.Builder
	for _, p := range s.Sessions {
		fmt.Fprintf(&b, "session %s: AS%d to AS%d at %s\n", p.Name, p.localASN(s), p.PeerASN, p.PeerAddress)
	}
	for _, r := range s.Routes {
		fmt.Fprintf(&b, "announce %s\n", r)
	}
	return b.String()
}

func (s Session) localASN(st State) uint32 {
	if s.LocalASN != 0 {
		return s.LocalASN
	}
	return st.ASN
}

func (r Route) String() string {
	if r.NextHop.IsValid() {
		return fmt.Sprintf("%s next hop %s", r.Prefix, r.NextHop)
	}
	return r.Prefix.String()
}
