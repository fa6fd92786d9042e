package l2

import (
	"context"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

// A stage is the next step of an address. Of several timers that are due, the lowest stage
// comes first: when a thousand addresses are added at once, each is announced once before
// any is announced a second time.
type stage uint8

const (
	announce stage = iota // the first announcement
	confirm               // the same in ARP's other form
	probe1                // probe for another host
	listened              // a host that is awake would have answered
	probe2
	probe3
	passed // no host has answered
	again1 // repetitions, in case a frame was lost
	again2
	again3
	again4
	again5
	refresh // repeats forever
	retry1  // probe again after a conflict
	retry2
	retry3
	retry4
	retry5
	numStages
)

// delays is the delay of each stage after the previous one.
type delays [numStages]time.Duration

// defaultDelays are used outside of tests.
// See probe.go for the delays of probing, and gratuitous.go for those between announcements.
func defaultDelays(period time.Duration) delays {
	return delays{
		listened: listenedDelay, probe2: probe2Delay, probe3: probe3Delay, passed: passedDelay,
		again1: again1Delay, again2: again2Delay, again3: again3Delay, again4: again4Delay, again5: again5Delay,
		refresh: period,
		retry1:  30 * time.Second, retry2: time.Minute, retry3: 2 * time.Minute, retry4: 4 * time.Minute,
		retry5: 5 * time.Minute,
	}
}

// next is the stage after at for an address of protocol p; false if there is none.
func (s delays) next(at stage, p *protocol) (stage, bool) {
	switch at {
	case announce:
		if p == ndpProtocol {
			return again1, true // Neighbor Discovery has one form only
		}
		return confirm, true
	case confirm:
		return again1, true
	case again5, refresh:
		return refresh, s[refresh] > 0
	case passed, retry1, retry2, retry3, retry4, retry5:
		return 0, false // the address changes its phase
	default:
		return at + 1, true
	}
}

// A timer is an entry of the schedule.
type timer struct {
	address *address
	socket  *packetSocket // nil: all sockets of the address
	stage   stage
	due     time.Time
}

// A schedule holds the timers of all addresses. The delay of a stage is constant, so each
// queue is ordered by due time.
type schedule struct {
	delays delays
	queues [numStages][]*timer
	// nextPop is the latest time for the next call of pop; zero: none, as there are no timers.
	nextPop time.Time
	// quietUntil is until when the process repeats no announcement after it was suspended.
	quietUntil time.Time
}

const (
	// suspendThreshold is the delay of pop that shows that this process was suspended. Other
	// nodes take its addresses over a little later.
	suspendThreshold = time.Second
	// popInterval is the maximum time between two calls of pop while there are timers: a long
	// one would hide a suspension.
	popInterval = suspendThreshold / 2
	// resumeTime is how long the caller of Set may need, after a suspension, to learn which
	// nodes answer now. Hosts would believe a repeated announcement, and send to this node.
	resumeTime = 3 * time.Second
)

// add appends t to the queue of its stage.
func (a *schedule) add(t *timer, now time.Time) {
	t.due = now.Add(a.delays[t.stage])
	a.queues[t.stage] = append(a.queues[t.stage], t)
}

// follow moves t to the next stage.
func (a *schedule) follow(t *timer, now time.Time) {
	p := protocolOf(t.address.want.Addr)
	if next, ok := a.delays.next(t.stage, p); ok {
		t.stage = next
		a.add(t, now)
	}
}

// pop removes the most urgent timer that is due. Without one it returns how long the caller may
// wait before it calls pop again; ok is false if there are no timers.
func (a *schedule) pop(now time.Time) (t *timer, wait time.Duration, ok bool) {
	if !a.nextPop.IsZero() && now.Sub(a.nextPop) > suspendThreshold {
		a.quietUntil = now.Add(resumeTime)
	}
	t, wait, ok = a.popDue(now)
	if a.nextPop = (time.Time{}); ok {
		wait = min(wait, popInterval)
		a.nextPop = now.Add(wait)
	}
	return t, wait, ok
}

func (a *schedule) popDue(now time.Time) (t *timer, wait time.Duration, ok bool) {
	for s, q := range a.queues {
		if len(q) == 0 {
			continue
		}
		left := a.dueTime(q[0]).Sub(now)
		if left <= 0 {
			t, q[0] = q[0], nil // do not keep it alive by the array
			a.queues[s] = q[1:]
			return t, 0, true
		}
		if !ok || left < wait {
			wait, ok = left, true
		}
	}
	return nil, wait, ok
}

// dueTime is when t may run. After a suspension, repetitions wait, and so does the end of probing:
// replies to the probes may not be read yet. First announcements do not wait: Set has just
// requested them.
func (a *schedule) dueTime(t *timer) time.Time {
	if t.stage >= passed && t.due.Before(a.quietUntil) {
		return a.quietUntil
	}
	return t.due
}

// sendScheduled sends what the schedule says, at a rate that neighbours can handle.
func (s *phases) sendScheduled(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		frames, wait, idle := s.runNext(time.Now())
		if !idle {
			s.waitForRate(ctx, frames)
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// waitForRate waits until that many more frames may be sent.
func (s *phases) waitForRate(ctx context.Context, frames int) {
	for ; frames > 0 && ctx.Err() == nil; frames -= frameBurst {
		_ = s.sendRate.WaitN(ctx, min(frames, frameBurst)) // fails only when ctx ends
	}
}

// runNext runs the most urgent timer that is due. It returns the number of frames sent, or
// how long nothing is due.
func (s *phases) runNext(now time.Time) (frames int, wait time.Duration, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, wait, some := s.schedule.pop(now)
	switch {
	case t != nil:
		return s.run(t, now), 0, false
	case !some:
		return 0, time.Hour, true // or until woken
	}
	return 0, wait, true
}

// run runs one timer.
func (s *phases) run(t *timer, now time.Time) (frames int) {
	if t.stale() {
		return 0
	}
	x := t.address
	switch t.stage {
	case probe1, listened, probe2, probe3, passed:
		frames = s.runProbing(t, now)
	case retry1, retry2, retry3, retry4, retry5:
		x.timer = nil
		s.enter(x, Waiting, now)
		s.advance(x, nil, now)
		notify.Changed(s.changed)
	default:
		frames = s.announceOn(t)
		s.schedule.follow(t, now)
	}
	return frames
}

// stale reports that the address has changed since t was scheduled.
func (t *timer) stale() bool {
	if t.socket == nil {
		return t.address.timer != t
	}
	return t.address.phase != Held || !slices.Contains(t.address.claims, claim{t.socket, t})
}
