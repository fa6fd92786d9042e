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

// deferralTime is how long GoBGP, after a restart, holds routes back from a
// router that does not send End-of-RIB. RFC 4724 §4.1 has it for speakers that select routes
// among those of other routers. This node has only its own, so the time is the shortest that GoBGP
// can have, in whole seconds. (With 0 GoBGP's timer can fire before the session
// is established, and has no effect then.)
const deferralTime = time.Second

// A syncing is the wait, after a start, for routers that may hold routes from
// before it: until each of them has received the End-of-RIB, and so knows which are gone.
type syncing struct {
	begin  time.Time
	until  map[string]time.Time // by session: when its router gives up on us
	synced map[string]time.Time // by session: when it had received everything
}

// newSyncing begins the wait for those of sessions that have graceful restart:
// the others' routers forgot everything when we went away.
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
func (y *syncing) mark(name string, at time.Time) {
	if y.synced[name].IsZero() {
		y.synced[name] = at
	}
}

// done returns when the last router had everything, or, unreachable, had given up.
func (y *syncing) done(now time.Time) (time.Time, bool) {
	last := y.begin
	for name, until := range y.until {
		at, ok := y.synced[name]
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

// limit is when the wait is over at the latest.
func (y *syncing) limit() time.Time {
	limit := y.begin
	for _, until := range y.until {
		if until.After(limit) {
			limit = until
		}
	}
	return limit
}
