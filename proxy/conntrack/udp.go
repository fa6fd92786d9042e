package conntrack

import (
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// DrainTime is how long a flow without an end of its own, as of UDP, stays with a backend
// that drains beside others. Answers that are under way from there arrive in that time.
const DrainTime = time.Second

// splitDraining takes out of p and returns the flows of protocols without an end that leave a
// backend which drains: it gets no new flows from now on, or there is another one only now.
// It still answers, and what is under way must arrive.
func (p Purge) splitDraining(want *state.State) Purge {
	draining := make(Purge)
	for vip, v := range p {
		for b, s := range v.gone {
			if fe := want.Frontend(vip, b.Port); b.Proto != state.TCP && fe != nil && fe.Drains(b.Backend) {
				draining.at(vip).gone[b] = s
				delete(v.gone, b)
			}
		}
		for port := range v.filled {
			if fe := want.Frontend(vip, port); fe != nil {
				for _, b := range fe.Draining {
					draining.at(vip).gone[goneBackend{port, b}] = state.SideExternal | state.SideInternal
				}
			}
			delete(v.filled, port)
		}
		if v.empty() {
			delete(p, vip)
		}
	}
	return draining
}

type drainingBackend struct {
	vip netip.Addr
	goneBackend
}

// drains says whether a flow still has its moment with a backend that drains.
func (s *Sweeper) drains(f *Flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, is := s.since[drainingBackend{f.VIP, goneBackend{f.Port, f.Backend}}]
	return is && time.Since(at) < DrainTime
}
