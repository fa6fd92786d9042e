package l2

import (
	"context"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/notify"
)

// sendScheduled sends what the schedule says, at a rate that neighbours can handle.
func (a *Announcer) sendScheduled(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		frames, wait, idle := a.runNext(time.Now())
		if !idle {
			a.waitForRate(ctx, frames)
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-a.wake:
		case <-timer.C:
		}
	}
}

// waitForRate waits until that many more frames may be sent.
func (a *Announcer) waitForRate(ctx context.Context, frames int) {
	for ; frames > 0 && ctx.Err() == nil; frames -= frameBurst {
		_ = a.sendRate.WaitN(ctx, min(frames, frameBurst)) // fails only when ctx ends
	}
}

// runNext runs the most urgent timer that is due. It returns the number of frames sent, or
// how long nothing is due.
func (a *Announcer) runNext(now time.Time) (frames int, wait time.Duration, idle bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, wait, some := a.schedule.pop(now)
	switch {
	case t != nil:
		return a.run(t, now), 0, false
	case !some:
		return 0, time.Hour, true // or until woken
	}
	return 0, wait, true
}

// run runs one timer.
func (a *Announcer) run(t *timer, now time.Time) (frames int) {
	if t.stale() {
		return 0
	}
	x := t.address
	switch t.stage {
	case probe1, probe2, probe3:
		frames = a.sendProbes(x)
		a.schedule.follow(t, now)
	case listened:
		if wait := a.schedule.delays[listened]; now.Sub(t.due) > wait {
			// This node had no processor, and a reply may wait to be read.
			a.schedule.add(t, now)
			return 0
		}
		frames = a.answerEarly(x, now)
		a.schedule.follow(t, now)
	case passed:
		x.timer, x.needsProbe = nil, false
		a.advance(x, nil, now)
		notify.Changed(a.changed)
	case retry1, retry2, retry3, retry4, retry5:
		x.timer = nil
		x.enter(Waiting, now)
		a.advance(x, nil, now)
		notify.Changed(a.changed)
	default:
		frames = a.announceOn(t)
		a.schedule.follow(t, now)
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

// announceOn announces an address on a socket, in the forms of its stage.
func (a *Announcer) announceOn(t *timer) (frames int) {
	addr, mac := t.address.want.Addr, t.socket.claims.mac
	if t.stage != confirm {
		frames += a.gratuitous(t.socket, announcement(addr, mac))
	}
	if t.stage != announce && addr.Is4() {
		frames += a.gratuitous(t.socket, confirmation(addr, mac))
	}
	if t.stage == refresh {
		frames *= refreshCost
	}
	return frames
}

func (a *Announcer) gratuitous(p *packetSocket, out packet) int {
	if a.send(p, out) {
		a.metrics.gratuitous.WithLabelValues(p.key.protocol.name).Inc()
	}
	return 1
}
