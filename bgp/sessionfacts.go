package bgp

import (
	"net/netip"
	"time"
)

// sessionFacts are the current state of a session.
type sessionFacts struct {
	state       SessionState
	since       time.Time // when it became established, or ceased to be
	flaps       int
	lastError   string
	lastErrorAt time.Time
	loss        string // why the last established session ended
	updates     int    // sent on earlier wires
	wire        *wire  // nil between connections
	local       netip.Addr
	router      netip.Addr // on the session's interface; invalid until it advertises itself
}

// connection returns the session's wire, nil between connections, and whether it is established.
func (s *session) connection() (w *wire, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts.wire, s.facts.wire != nil && s.facts.state == Established
}
