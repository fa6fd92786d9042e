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
	Idle        SessionState = "Idle"        // closed by this node
	Connect     SessionState = "Connect"     // waiting for the router to accept the connection
	Active      SessionState = "Active"      // waiting for the next attempt
	OpenSent    SessionState = "OpenSent"    // waiting for the router's OPEN
	OpenConfirm SessionState = "OpenConfirm" // waiting for the router's KEEPALIVE
	Established SessionState = "Established" // routes are exchanged
)

// maxListed limits the prefixes that a Status lists for each session. The counts are complete.
const maxListed = 100

// A Status is the current state, as far as this node can know it. It is a plain value.
type Status struct {
	ASN      uint32     `json:"asn,omitempty"` // 0 until the first session is configured
	RouterID netip.Addr `json:"routerID,omitzero"`
	Routes   int        `json:"routes"` // that this node announces to at least one router

	// Synced is the result of Server.Synced.
	Synced time.Time `json:"synced,omitzero"`
	// Problems say what was left out of the last State, and what would be right.
	Problems []string        `json:"problems,omitempty"`
	Sessions []SessionStatus `json:"sessions"` // sorted by name
}

// A SessionStatus is the current state of one session.
type SessionStatus struct {
	Name string `json:"name"`
	// PeerAddress is invalid until a router advertises itself on Interface.
	PeerAddress netip.Addr `json:"peerAddress"`
	Interface   string     `json:"interface,omitempty"`
	// OtherRouter is another host that sends router advertisements on Interface; invalid if
	// there is none.
	OtherRouter netip.Addr `json:"otherRouter,omitzero"`
	// PeerASN is 0 if any external AS number is accepted and the router has not sent its own yet.
	PeerASN       uint32     `json:"peerASN"`
	LocalASN      uint32     `json:"localASN"`
	LocalRouterID netip.Addr `json:"localRouterID"`
	// LocalAddress is this node's end of the newest connection, PeerRouterID the router's ID on it.
	LocalAddress netip.Addr `json:"localAddress,omitzero"`
	PeerRouterID netip.Addr `json:"peerRouterID,omitzero"`

	State SessionState `json:"state"`
	Since time.Time    `json:"since"` // up since, or down since
	Flaps int          `json:"flaps"` // how often it went down although this node wanted it up

	// LastError is why the newest attempt or session ended, for an operator.
	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
	// LossReason is why the last established session was lost. Failed attempts after that do not
	// replace it.
	LossReason string `json:"lossReason,omitempty"`

	// BFD is nil without BFD, and before the first connection.
	BFD *BFDStatus `json:"bfd,omitempty"`

	// GracefulRestart says whether both ends support it on this connection.
	GracefulRestart bool `json:"gracefulRestart"`
	// EndOfRIB is when the router had received everything, zero until then.
	EndOfRIB time.Time `json:"endOfRIB,omitzero"`
	Updates  int       `json:"updates"` // UPDATE messages sent
	// IgnoredUpdates counts the UPDATEs that the router has sent on this connection. They are
	// discarded, but cost both ends time.
	IgnoredUpdates int `json:"ignoredUpdates,omitempty"`

	// Advertised counts the prefixes that the router has now; Prefixes are
	// the first 100 of them.
	Advertised int            `json:"advertised"`
	Prefixes   []netip.Prefix `json:"prefixes,omitempty"`
	// LeftOut counts the routes that cannot be sent to this router, and Omissions explains the
	// first 100 of them.
	LeftOut   int        `json:"leftOut"`
	Omissions []Omission `json:"omissions,omitempty"`
}

// Router returns the router's address, or its interface until it advertises itself there.
func (st SessionStatus) Router() string {
	if !st.PeerAddress.IsValid() {
		return st.Interface
	}
	return st.PeerAddress.String()
}

// DownReason explains to an operator why a session is down: what ended it, if it was up once, and
// what has prevented it since.
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

// Status returns the current state. It takes time that grows with the number of routes, but blocks
// nothing.
func (s *Server) Status() Status {
	s.mu.Lock()
	sessions, routes := s.sessions, s.routes
	st := Status{Routes: routes.Len(), Sessions: make([]SessionStatus, 0, len(sessions))}
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

func (s *session) status(routes Routes) SessionStatus {
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

// addWire adds the facts of the current connection and returns the router's OPEN, nil before that
// has arrived.
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

// addRoutes lists the routes that this router gets, and why it does not get others.
func (st *SessionStatus) addRoutes(routes Routes, conf Session, router *open) {
	for r := range routes.All() {
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

// omission returns why r is not sent to a router, empty if it is. It repeats the effect of GoBGP's
// exportStatements and of the families in both OPENs.
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
		return "no next hop: the router takes no IPv6 next hops for IPv4 (RFC 8950), and no IPv4 address " +
			"of this node is known"
	}
	return ""
}

func ipVersion(is4 bool) string {
	if is4 {
		return "IPv4"
	}
	return "IPv6"
}

// Synced returns when all routers with graceful restart in the first State with sessions had
// received everything, or had forgotten this node because it could not reach them within
// RestartTime. Until then they may hold routes from before a restart. ok is false before the first
// Set; without such routers, the time is that of the first Set.
func (s *Server) Synced() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.syncing == nil {
		return time.Time{}, false
	}
	return s.syncing.done(time.Now())
}
