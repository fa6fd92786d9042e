package conntrack

import (
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// drainTime is how long a flow without an end of its own, as of UDP, stays with a backend
// that drains beside others. Answers that are under way from there arrive in that time.
const drainTime = time.Second

const (
	// restTime is how long such a flow must rest, after drainTime, to leave the backend: the kernel
	// forgets it then. If it were deleted, an answer that is under way would arrive untranslated.
	restTime = time.Second
	// busyDrainTime is when a flow that does not rest is deleted.
	busyDrainTime = drainTime + 2*restTime
)

// splitDraining takes out of stale and returns the flows of protocols without an end that leave a
// backend which drains: it gets no new flows from now on, or there is another one only now.
// It still answers, and what is under way must arrive.
func (stale StaleEntries) splitDraining(want *state.State) StaleEntries {
	draining := make(StaleEntries)
	for vip, v := range stale {
		for b, s := range v.removedBackends {
			if fe := want.Frontend(vip, b.Port); b.Proto != state.TCP && fe != nil && fe.Drains(b.Backend) {
				draining.at(vip).removedBackends[b] = s
				delete(v.removedBackends, b)
			}
		}
		for port := range v.recovered {
			if fe := want.Frontend(vip, port); fe != nil {
				for _, b := range fe.Draining {
					draining.at(vip).removedBackends[removedBackend{port, b}] = state.SideExternal | state.SideInternal
				}
			}
			delete(v.recovered, port)
		}
		if v.empty() {
			delete(stale, vip)
		}
	}
	return draining
}

type drainingBackend struct {
	vip netip.Addr
	removedBackend
}

// drains says whether a flow still has its moment with a backend that drains.
func (s *Cleaner) drains(f *Flow) bool {
	age, is := s.drainAge(f)
	return is && age < drainTime
}

// drainAge returns for how long the flow's backend has drained, as far as the Cleaner remembers.
func (s *Cleaner) drainAge(f *Flow) (age time.Duration, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, is := s.since[drainingBackend{f.VIP, removedBackend{f.Port, f.Backend}}]
	return time.Since(at), is
}

// rests says whether a flow may leave its backend when it rests, instead of now. The sweep looks
// for it again.
func (s *Cleaner) rests(f *Flow) bool {
	age, is := s.drainAge(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !is || age >= busyDrainTime || !backendDrains(&s.want, f) {
		return false
	}
	s.again.at(f.VIP).removedBackends[removedBackend{f.Port, f.Backend}] = state.SideExternal | state.SideInternal
	return true
}

// requeueResting lets what may rest wait once more.
func (s *Cleaner) requeueResting() {
	again := s.again
	s.again = make(StaleEntries)
	s.draining.add(again, func() { s.ripen(&s.draining) })
}

const (
	ctNew      = 0 // IPCTNL_MSG_CT_NEW: changes an entry that exists
	ctaTimeout = 7 // its lifetime, in seconds
)

// expiry makes the kernel forget a flow that gets no packet for restTime: each packet gives it its
// full lifetime again.
var expiry = flowChange{verb: "shorten", message: ctNew, attributes: func() []byte {
	var e nfnl.Encoder
	e.Uint32(ctaTimeout, uint32(restTime/time.Second))
	return e.B
}()}
