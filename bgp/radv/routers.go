package radv

import (
	"net/netip"
	"time"
)

// silence is how long a router must have sent no advertisement before another one takes its
// place: three of the usual intervals, and some time for a busy router.
const silence = 3*usualPause + 5*time.Second

// routers are the hosts that advertise themselves on a link. The first one is the router
// until it is silent, so that another host cannot take the session over by an advertisement.
type routers struct {
	chosen, other         netip.Addr
	lastChosen, lastOther time.Time // the latest advertisement of each
}

// received records an advertisement, and reports whether chosen or other changed.
func (r *routers) received(from netip.Addr, now time.Time) (changed bool) {
	// Every advertisement renews a time, but only a change of the addresses is news to a session.
	before := [2]netip.Addr{r.chosen, r.other}
	switch {
	case !r.chosen.IsValid(), from != r.chosen && now.Sub(r.lastChosen) > silence:
		r.chosen, r.lastChosen = from, now
	case from == r.chosen:
		r.lastChosen = now
	case !r.other.IsValid():
		r.other = from
	}
	if from == r.other {
		r.lastOther = now
	}
	// The second host is only for a warning: it ends when that host is silent, or has become the
	// router.
	if r.other == r.chosen || now.Sub(r.lastOther) > silence {
		r.other = netip.Addr{}
	}
	return before != [2]netip.Addr{r.chosen, r.other}
}
