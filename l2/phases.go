package l2

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// An address is an address of the State.
type address struct {
	want  Address
	phase Phase
	since time.Time
	// wasHeld: the phase was Held before, or is.
	wasHeld bool
	claims  []claim // the sockets where it is answered for or probed
	// needsProbe is set if another host may hold the address: it must be probed first.
	needsProbe bool
	timer      *timer // probing, or the retry after a conflict; nil: none
	// early is set while the address is probed and the first probe has found no host.
	// Requests are answered then, and nothing is announced to hosts that know another
	// owner: if a slow one turns up, only hosts that have asked meanwhile are misled.
	early bool
	asked []request // what came before

	conflict *Conflict
	defended time.Time // the last announcement that answered a conflict
	strikes  int       // how often it was given up
}

// A claim is an address on a socket.
type claim struct {
	socket *packetSocket
	timer  *timer // announcing; nil: none
}

// phases leads the addresses of the State through their phases, by what sockets receive and by time.
type phases struct {
	log       *slog.Logger
	metrics   *metrics
	changed   chan struct{} // of the Announcer
	wake      chan struct{} // signals a new timer in the schedule
	conflicts chan struct{} // there are conflicts to identify
	sendRate  *rate.Limiter
	// requestLifetime is repeatTime. Tests whose hosts repeat no request set a longer one.
	requestLifetime time.Duration

	// mu protects the fields below, and those of addresses and sockets unless they say
	// otherwise. A packet is decided about and answered under mu, so that no frame is sent
	// for an address after the Set that removed it. Never block while holding it.
	mu        sync.Mutex
	addresses map[netip.Addr]*address
	schedule  schedule
	have      []netip.Addr        // the result of held
	relisted  map[netip.Addr]bool // addresses that have since become held, or are no longer
}

// newPhases returns phases without addresses, which are announced again at the interval refresh; 0: never.
func newPhases(log *slog.Logger, m *metrics, changed chan struct{}, refresh time.Duration) *phases {
	return &phases{
		log: log, metrics: m, changed: changed, wake: make(chan struct{}, 1), conflicts: make(chan struct{}, 1),
		sendRate: rate.NewLimiter(framesPerSecond, frameBurst), requestLifetime: repeatTime,
		addresses: make(map[netip.Addr]*address), schedule: schedule{delays: defaultDelays(refresh)},
		relisted: make(map[netip.Addr]bool),
	}
}

// held is the result of Set. It returns the same slice until the result changes.
func (s *phases) held() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.relisted) == 0 {
		return s.have
	}
	changed := slices.SortedFunc(maps.Keys(s.relisted), netip.Addr.Compare)
	same := func(a, b netip.Addr) bool { return a == b }
	s.have = sortedset.Patch(s.have, changed, netip.Addr.Compare, same, func(i int) (netip.Addr, bool) {
		x := s.addresses[changed[i]]
		return changed[i], x != nil && x.phase == Held
	})
	s.relisted = make(map[netip.Addr]bool)
	return s.have
}

// relist makes held look at an address again. Call it with mu held, when the address becomes held
// and when it no longer is.
func (s *phases) relist(x *address) { s.relisted[x.want.Addr] = true }

// release stops answering, with mu held, for changed addresses where they are not planned.
func (s *phases) release(plans socketPlans, changed []change) {
	for _, c := range changed {
		x := s.addresses[c.addr]
		if x == nil {
			continue
		}
		x.claims = slices.DeleteFunc(x.claims, func(on claim) bool {
			gone := !plans[on.socket.key].has(c.addr) || on.socket.failed.Load()
			if gone {
				delete(on.socket.claims.addresses, c.addr)
			}
			return gone
		})
		if c.want == nil {
			x.timer = nil
			delete(s.addresses, c.addr)
			s.relist(x)
		}
	}
}

// assign gives sockets, with mu held, to the changed addresses that are planned.
func (s *phases) assign(k *worker, changed []change, now time.Time) {
	fresh := make(map[*packetSocket]bool)
	for key, b := range k.plans {
		p := k.sockets[key]
		if p.claims.mac != b.iface.MAC {
			fresh[p] = true
		}
		p.iface, p.pools = b.iface, b.pools
		p.claims.mac, p.claims.own, p.claims.speakers = b.iface.MAC, k.own, k.speakers
	}
	for _, c := range changed {
		if c.want == nil {
			continue
		}
		x := s.addresses[c.addr]
		if x == nil {
			x = &address{phase: Waiting, since: now, needsProbe: c.want.Probe}
			s.addresses[c.addr] = x
		}
		again := x.update(*c.want, k.speakers)
		s.assignSockets(k, x, fresh, now)
		if again {
			s.startAnnouncing(x, x.sockets(), now)
		}
	}
}

// update takes over the wanted Address, and reports whether a held one must be announced
// again.
func (a *address) update(w Address, speakers map[MAC]bool) (again bool) {
	again = a.phase == Held && a.want.Round != w.Round
	a.want = w
	a.clearConflict(speakers)
	if a.phase != Conflicting && a.strikes == 0 && !w.Probe {
		a.needsProbe = false
	}
	return again
}

// clearConflict ends a conflict with a host that turns out to be a speaker.
func (a *address) clearConflict(speakers map[MAC]bool) {
	if a.conflict == nil || !speakers[a.conflict.MAC] {
		return
	}
	if a.phase == Conflicting {
		a.phase, a.timer, a.needsProbe = Waiting, nil, a.want.Probe
	}
	a.conflict = nil
}

// assignSockets gives x its planned sockets, and starts probing or announcing on the new ones.
func (s *phases) assignSockets(k *worker, x *address, fresh map[*packetSocket]bool, now time.Time) {
	var begin []*packetSocket
	for key, b := range k.plans {
		if key.protocol != protocolOf(x.want.Addr) || !b.has(x.want.Addr) {
			continue
		}
		p := k.sockets[key]
		if p.claims.addresses[x.want.Addr] == x {
			if fresh[p] {
				begin = append(begin, p)
			}
			continue
		}
		p.claims.addresses[x.want.Addr] = x
		x.claims = append(x.claims, claim{socket: p})
		begin = append(begin, p)
	}
	s.advance(x, begin, now)
}

// advance moves x to the phase that it should be in, and starts probing or announcing on
// new sockets.
func (s *phases) advance(x *address, begin []*packetSocket, now time.Time) {
	switch {
	case x.phase == Conflicting:
		return // until its retry timer is due
	case len(x.claims) == 0:
		x.timer = nil
		s.enter(x, Waiting, now)
	case x.needsProbe:
		if x.phase != Probing || len(begin) > 0 {
			s.startProbing(x, now)
		}
	default:
		x.timer = nil
		if x.phase != Held {
			s.enter(x, Held, now)
			begin = x.sockets()
		}
		s.startAnnouncing(x, begin, now)
	}
}

func (s *phases) enter(x *address, p Phase, now time.Time) {
	if x.phase == p {
		return
	}
	if x.phase == Held || p == Held {
		s.relist(x)
	}
	x.phase, x.since, x.early, x.asked = p, now, false, nil
	x.wasHeld = x.wasHeld || p == Held
}

func (a *address) sockets() []*packetSocket {
	sockets := make([]*packetSocket, len(a.claims))
	for i, c := range a.claims {
		sockets[i] = c.socket
	}
	return sockets
}

// isStale reports whether a request that arrived at the time when is too old to be answered.
func (s *phases) isStale(when, now time.Time) bool { return now.Sub(when) >= s.requestLifetime }
