package membership

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

// A leaseState is what the watch of a node's Lease has seen.
type leaseState struct {
	since   time.Time   // the watch began
	record  leaseRecord // empty until it was read
	seen    time.Time   // when record.renewTime was first seen, by the local clock
	renewed time.Time   // when a renewal was last seen, by the local clock; zero: never
	// absent: the Lease is not renewed, as the API server confirmed after renewals of this
	// node's Lease succeeded.
	absent bool
}

// validity is how long a renewal counts.
func (l *leases) validity() time.Duration { return leaseValidity * l.interval }

// generation changes with every state.
func (l *leases) generation() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// watchOnly watches the Leases of the first maxLeases of these nodes and of no others, by one
// watch, and returns their states. members is how many nodes renew Leases.
func (l *leases) watchOnly(nodes []string, members int) map[string]leaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil {
		return nil
	}
	l.members = members
	want := slices.Sorted(slices.Values(nodes[:min(len(nodes), maxLeases)]))
	if !slices.Equal(want, l.watched) {
		l.rewatch(want)
	}
	return maps.Clone(l.states)
}

// rewatch replaces the watch, with mu held. States of nodes that are still watched are kept.
func (l *leases) rewatch(want []string) {
	l.stopWatch()
	l.watched = want
	maps.DeleteFunc(l.states, func(node string, _ leaseState) bool { return !slices.Contains(want, node) })
	for _, n := range want {
		if _, known := l.states[n]; !known {
			l.states[n] = leaseState{since: time.Now()}
			l.again = true
			notify.Changed(l.hurry)
		}
	}
	var ctx context.Context
	ctx, l.stopWatch = context.WithCancel(l.ctx)
	if len(want) > 0 {
		go l.watchAfter(ctx, time.Until(l.rewatched.Add(rewatchPause)), want)
	}
}

// watchAfter watches after a pause: while nodes come and go, it does not begin a watch that would
// be replaced at once.
func (l *leases) watchAfter(ctx context.Context, pause time.Duration, nodes []string) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(pause):
	}
	l.mu.Lock()
	l.rewatched = time.Now()
	l.mu.Unlock()
	l.watch(ctx, nodes)
}

// takeReleased reports, once, whether a watched node has stopped answering for an address.
func (l *leases) takeReleased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	released := l.released
	l.released = false
	return released
}

// watch watches Leases until ctx ends. The first content is from before the watch; a later change
// is a renewal, so no two clocks are compared. If a Lease has not changed for long enough, the
// watch is restarted: a watch may fail without an error, and a new one begins with the current
// content.
func (l *leases) watch(ctx context.Context, nodes []string) {
	retry := &backoff.ExponentialBackOff{
		InitialInterval: time.Second, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 5 * time.Second,
	}
	retry.Reset()
	for ctx.Err() == nil {
		attempt, restart := context.WithCancel(ctx)
		quiet := time.AfterFunc(math.MaxInt64, restart)
		err := l.client.watch(attempt, nodes, func(node string, r leaseRecord) {
			retry.Reset()
			quiet.Reset(l.recordLease(ctx, node, r))
		})
		restarted := attempt.Err() != nil
		quiet.Stop()
		restart()
		l.log.Debug("watch of Leases ended", "nodes", nodes, "err", err)
		if restarted {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// recordLease records the content of a Lease, and returns after what time the watch must be
// restarted. A release in the first content also counts: it may have happened after gossip lost the
// node.
func (l *leases) recordLease(ctx context.Context, node string, r leaseRecord) (restart time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state, watched := l.states[node]
	if ctx.Err() != nil || !watched {
		return math.MaxInt64
	}
	before := state.record
	if r.released != "" && r.released != before.released {
		l.released = true
		l.signal()
	}
	if state.record = r; r.renewTime != before.renewTime {
		state.seen = time.Now()
	}
	l.states[node] = state
	switch before.renewTime {
	case "":
	case r.renewTime:
		l.checkAbsent(node)
	default:
		l.recordRenewal(node)
	}
	return l.untilQuiet()
}

// untilQuiet returns, with mu held, how long the watch may go on without a change.
func (l *leases) untilQuiet() time.Duration {
	next := time.Duration(math.MaxInt64)
	for _, s := range l.states {
		if s.seen.IsZero() || s.absent {
			continue
		}
		left := absentAfter*l.interval - time.Since(s.seen)
		if left <= 0 {
			left = l.interval
		}
		next = min(next, left)
	}
	return next
}

// recordRenewal records a renewal, with mu held, and signals again when it is no longer valid. For a
// node that was absent, this node has renewed its Lease rarely, and would be absent for it.
func (l *leases) recordRenewal(node string) {
	state := l.states[node]
	if state.absent {
		l.again = true
		notify.Changed(l.hurry)
	}
	state.renewed, state.absent = time.Now(), false
	l.states[node] = state
	l.signal()
	time.AfterFunc(l.validity(), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.signal()
	})
}

// checkAbsent decides, with mu held, whether a node with an unchanged Lease is absent: its renewal
// was due, and the API server has accepted a renewal of this node since. An API server that accepts
// no renewals proves nothing.
func (l *leases) checkAbsent(node string) {
	state := l.states[node]
	due := state.seen.Add(l.interval)
	if state.absent || time.Since(state.seen) < absentAfter*l.interval || !l.renewed.After(due) {
		return
	}
	state.absent = true
	l.states[node] = state
	l.signal()
}

// signal signals a change of the states.
func (l *leases) signal() {
	l.changes++
	notify.Changed(l.changed)
}
