package bgp

import (
	"cmp"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// gracefulRestart is the capability that the session's OPEN has (RFC 4724 §3), nil if it has none.
func (n neighbor) gracefulRestart() *api.GracefulRestart {
	if !n.conf.GracefulRestart {
		return nil
	}
	return &api.GracefulRestart{
		Enabled:         true,
		RestartTime:     uint32(n.conf.restartTime() / time.Second),
		DeferralTime:    uint32(deferralTime / time.Second),
		LocalRestarting: n.restarting,
	}
}

func (s Session) restartTime() time.Duration { return cmp.Or(s.RestartTime, defaultRestartTime) }

// deferralTime is how long GoBGP, after a restart, holds routes back from a router that does not
// send End-of-RIB. RFC 4724 §4.1 intends it for speakers that select among routes of other routers.
// This node has only its own, so the time is the shortest that GoBGP allows, in whole seconds.
// (With 0, GoBGP's timer can fire before the session is established, and then has no effect.)
const deferralTime = time.Second

// A syncing is the wait, after a start, for routers that may hold older routes: until each has
// received the End-of-RIB, and so knows which routes are gone.
type syncing struct {
	begin  time.Time
	until  map[string]time.Time // by session: when its router drops the routes
	synced map[string]time.Time // by session: when it had received everything
}

// newSyncing begins the wait for sessions with graceful restart. The routers of other sessions
// dropped everything when the last process ended.
func newSyncing(begin time.Time, sessions []Session) *syncing {
	y := &syncing{begin: begin, until: map[string]time.Time{}, synced: map[string]time.Time{}}
	for _, s := range sessions {
		if s.GracefulRestart {
			y.until[s.Name] = begin.Add(s.restartTime())
		}
	}
	return y
}

// mark records that a session's router has received everything; only the first time
// counts.
func (s *syncing) mark(name string, at time.Time) {
	if s.synced[name].IsZero() {
		s.synced[name] = at
	}
}

// done returns when the last router had everything, or dropped the routes because this node did not
// reach it.
func (s *syncing) done(now time.Time) (time.Time, bool) {
	last := s.begin
	for name, until := range s.until {
		at, ok := s.synced[name]
		if !ok {
			at = until
		}
		if at.After(now) {
			return time.Time{}, false
		}
		if at.After(last) {
			last = at
		}
	}
	return last, true
}

// limit is the latest end of the wait.
func (s *syncing) limit() time.Time {
	limit := s.begin
	for _, until := range s.until {
		if until.After(limit) {
			limit = until
		}
	}
	return limit
}
