package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// A SessionState is a state of RFC 4271 §8.2.2.
type SessionState string

const (
	Idle        SessionState = "Idle"        // closed by us
	Connect     SessionState = "Connect"     // waiting for the router to take the connection
	Active      SessionState = "Active"      // waiting for the next attempt
	OpenSent    SessionState = "OpenSent"    // waiting for the router's OPEN
	OpenConfirm SessionState = "OpenConfirm" // waiting for the router's KEEPALIVE
	Established SessionState = "Established" // routes are exchanged
)

// maxListed is how many prefixes of a kind a Status lists per session. The
// counts are complete.
const maxListed = 100

// A Status is what is so now, as far as this node can know. It is a plain value.
type Status struct {
	ASN      uint32     `json:"asn,omitempty"` // 0 until the first session is configured
	RouterID netip.Addr `json:"routerID,omitzero"`
	Routes   int        `json:"routes"` // that this node announces to the routers that can have them

	// Synced is what Server.Synced says.
	Synced time.Time `json:"synced,omitzero"`
	// Problems say what of the last State was left out, and what would be right.
	Problems []string        `json:"problems,omitempty"`
	Sessions []SessionStatus `json:"sessions"` // sorted by name
}

// A SessionStatus is what is so about one session.
type SessionStatus struct {
	Name string `json:"name"`
	// PeerAddress is invalid until a router advertises itself on Interface.
	PeerAddress netip.Addr `json:"peerAddress"`
	Interface   string     `json:"interface,omitempty"`
	// OtherRouter is another host that sends router advertisements on Interface; invalid if
	// there is none.
	OtherRouter netip.Addr `json:"otherRouter,omitzero"`
	// PeerASN is 0 where any external AS number is right and the router has not
	// said its own yet.
	PeerASN       uint32     `json:"peerASN"`
	LocalASN      uint32     `json:"localASN"`
	LocalRouterID netip.Addr `json:"localRouterID"`
	// LocalAddress is our end of the newest connection, PeerRouterID what the
	// router called itself on it.
	LocalAddress netip.Addr `json:"localAddress,omitzero"`
	PeerRouterID netip.Addr `json:"peerRouterID,omitzero"`

	State SessionState `json:"state"`
	Since time.Time    `json:"since"` // up since, or down since
	Flaps int          `json:"flaps"` // how often it went down without our doing

	// LastError is why the newest attempt or session ended, for an operator.
	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
	// LossReason is why the last session that was up ended without our doing. Attempts
	// that fail afterwards do not hide it.
	LossReason string `json:"lossReason,omitempty"`

	// BFD is nil without BFD, and before the first connection.
	BFD *BFDStatus `json:"bfd,omitempty"`

	// GracefulRestart says whether both ends have it on this connection.
	GracefulRestart bool `json:"gracefulRestart"`
	// EndOfRIB is when the router had received everything, zero until then.
	EndOfRIB time.Time `json:"endOfRIB,omitzero"`
	Updates  int       `json:"updates"` // UPDATE messages sent
	// IgnoredUpdates counts the UPDATEs that the router has sent on this connection.
	// They cost it and us time, and are thrown away.
	IgnoredUpdates int `json:"ignoredUpdates,omitempty"`

	// Advertised counts the prefixes that the router has now; Prefixes are
	// the first 100 of them.
	Advertised int            `json:"advertised"`
	Prefixes   []netip.Prefix `json:"prefixes,omitempty"`
	// LeftOut counts the routes that cannot be sent to this router, and Omissions
	// say why for the first 100 of them.
	LeftOut   int        `json:"leftOut"`
	Omissions []Omission `json:"omissions,omitempty"`
}

// Router is the router's address, or its interface until it advertises itself there.
func (st SessionStatus) Router() string {
	if !st.PeerAddress.IsValid() {
		return st.Interface
	}
	return st.PeerAddress.String()
}

// DownReason is why a session is down, for an operator: what ended it, if it was up once,
// and what has been in the way since then.
func (st SessionStatus) DownReason() string {
	if st.LossReason == "" || st.LossReason == st.LastError {
		return cmp.Or(st.LastError, "not up yet")
	}
	return st.LossReason + "; since then: " + st.LastError
}

// An Omission is a route that is not sent to one router.
type Omission struct {
	Prefix netip.Prefix `json:"prefix"`
	Reason string       `json:"reason"`
}

// Status says what is so now. It takes time that grows with the number of
// routes, but stops nothing.
func (s *Server) Status() Status {
	s.mu.Lock()
	sessions, routes := s.sessions, s.routes
	st := Status{Routes: len(routes), Sessions: make([]SessionStatus, 0, len(sessions))}
	if s.engine != nil {
		st.ASN, st.RouterID = s.asn, s.routerID
	}
	for _, err := range s.problems {
		st.Problems = append(st.Problems, err.Error())
	}
	s.mu.Unlock()

	st.Synced, _ = s.Synced()
	for _, x := range sessions {
		st.Sessions = append(st.Sessions, x.status(routes))
	}
	return st
}

func (s *session) status(routes []Route) SessionStatus {
	s.mu.Lock()
	f, d, link := s.facts, s.detector, s.link
	s.mu.Unlock()
	st := SessionStatus{
		Name:          s.conf.Name,
		PeerAddress:   cmp.Or(s.conf.PeerAddress, f.router),
		Interface:     s.conf.Interface,
		PeerASN:       s.conf.PeerASN,
		LocalASN:      s.conf.LocalASN,
		LocalRouterID: s.conf.RouterID,
		LocalAddress:  f.local,
		State:         f.state,
		Since:         f.since,
		Flaps:         f.flaps,
		LastError:     f.lastError,
		LastErrorTime: f.lastErrorAt,
		LossReason:    f.loss,
		Updates:       f.updates,
	}
	if link != nil {
		st.OtherRouter = link.Other()
	}
	if d != nil {
		is := d.seen()
		is.explain(s.conf)
		st.BFD = &is
	}
	var router *open
	if f.wire != nil {
		router = st.addWire(s.conf, f.wire.seen())
	}
	st.addRoutes(routes, s.conf, router)
	return st
}

// addWire adds the facts of the current connection and returns the router's OPEN,
// nil before that has come.
func (st *SessionStatus) addWire(conf Session, f wireFacts) *open {
	st.Updates += f.updates
	st.IgnoredUpdates = f.ignored
	if f.open == nil {
		return nil
	}
	if st.State == OpenSent {
		st.State = OpenConfirm
	}
	st.PeerASN, st.PeerRouterID = cmp.Or(st.PeerASN, f.open.asn), f.open.routerID
	if st.State == Established {
		st.GracefulRestart = conf.GracefulRestart && f.open.gracefulRestart
		st.EndOfRIB, _ = ribSent(conf, f)
	}
	return f.open
}

// addRoutes lists the routes that this router gets, and why it lacks others.
func (st *SessionStatus) addRoutes(routes []Route, conf Session, router *open) {
	for _, r := range routes {
		if !r.Peers.Has(st.Name) {
			continue
		}
		if reason := omission(r, conf, router); reason != "" {
			st.LeftOut++
			if len(st.Omissions) < maxListed {
				st.Omissions = append(st.Omissions, Omission{r.Prefix, reason})
			}
			continue
		}
		if st.State != Established {
			continue
		}
		st.Advertised++
		if len(st.Prefixes) < maxListed {
			st.Prefixes = append(st.Prefixes, r.Prefix)
		}
	}
}

// omission says why r is not sent to a router; empty if it is. It is what GoBGP's
// export does with exportStatements and the families of both OPENs.
func omission(r Route, conf Session, router *open) string {
	is4 := r.Prefix.Addr().Is4()
	switch {
	case !conf.carries(is4):
		return "no next hop: the session is over IPv4, and no IPv6 address of this node is known"
	case router == nil:
		return ""
	case is4 && !router.ipv4, !is4 && !router.ipv6:
		return fmt.Sprintf("the router does not take %s routes on this session", ipVersion(is4))
	case is4 && !conf.PeerAddress.Is4() && !router.extendedHop && !conf.NextHop.IsValid():
		return "no next hop: the router takes no IPv6 next hops for IPv4 (RFC 8950), and no IPv4 address of this node is known"
	}
	return ""
}

func ipVersion(is4 bool) string {
	if is4 {
		return "IPv4"
	}
	return "IPv6"
}
