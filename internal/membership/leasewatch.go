package membership

import (
	"context"
	"maps"
	"math"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/fanfare-lb/fanfare/internal/notify"
)

// A leaseState is what a watch of a node's Lease has shown.
type leaseState struct {
	since   time.Time   // the watch began
	record  leaseRecord // empty until it was read
	renewed time.Time   // when a renewal was last seen, by the local clock; zero: none was
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

// watchOnly watches the Leases of these nodes and of no others, and returns their states.
func (l *leases) watchOnly(nodes []string) map[string]leaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil {
		return nil
	}
	want := map[string]bool{}
	for _, n := range nodes[:min(len(nodes), maxLeases)] {
		want[n] = true
	}
	for n, stop := range l.watched {
		if !want[n] {
			stop()
			delete(l.watched, n)
			delete(l.states, n)
		}
	}
	for n := range want {
		if l.watched[n] == nil {
			ctx, stop := context.WithCancel(l.ctx)
			l.watched[n], l.states[n] = stop, leaseState{since: time.Now()}
			go l.watch(ctx, n)
		}
	}
	return maps.Clone(l.states)
}

// takeReleased reports, once, whether a watched node has stopped answering for an address.
func (l *leases) takeReleased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	released := l.released
	l.released = false
	return released
}

// watch watches one Lease until ctx ends. The first content is from before; a renewal is a
// later change, so that no two clocks are compared. When the Lease has not changed for long
// enough, the watch is restarted: a watch may be dead without an error, and a new one begins
// with the current content.
func (l *leases) watch(ctx context.Context, node string) {
	retry := &backoff.ExponentialBackOff{InitialInterval: time.Second, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 5 * time.Second}
	retry.Reset()
	var known string
	var since time.Time // known was first seen
	for ctx.Err() == nil {
		attempt, restart := context.WithCancel(ctx)
		quiet := time.AfterFunc(math.MaxInt64, restart)
		err := l.client.watch(attempt, node, func(r leaseRecord) {
			retry.Reset()
			l.recordLease(ctx, node, r)
			if r.renewTime == known {
				if !l.checkAbsent(ctx, node, since) {
					quiet.Reset(l.interval)
				}
				return
			}
			if known != "" {
				l.recordRenewal(ctx, node)
			}
			known, since = r.renewTime, time.Now()
			quiet.Reset(absentAfter * l.interval)
		})
		restarted := attempt.Err() != nil
		quiet.Stop()
		restart()
		l.log.Debug("watch of a Lease ended", "node", node, "err", err)
		if restarted {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// recordLease records the content of a Lease. A release also counts if it is in the first
// content: it may have happened after gossip lost the node.
func (l *leases) recordLease(ctx context.Context, node string, r leaseRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	state := l.states[node]
	if r.released != "" && r.released != state.record.released {
		l.released = true
		l.signal()
	}
	state.record = r
	l.states[node] = state
}

// recordRenewal records a renewal, and signals again when it is no longer valid.
func (l *leases) recordRenewal(ctx context.Context, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	state := l.states[node]
	state.renewed, state.absent = time.Now(), false
	l.states[node] = state
	l.signal()
	time.AfterFunc(l.validity(), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.signal()
	})
}

// checkAbsent decides whether a node is absent whose Lease has not changed since: a renewal
// was due, and the API server has accepted one of this node since then. An API server that
// accepts no renewals proves nothing.
func (l *leases) checkAbsent(ctx context.Context, node string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := l.states[node]
	switch due := since.Add(l.interval); {
	case ctx.Err() != nil:
		return false
	case state.absent:
	case time.Since(since) < absentAfter*l.interval || !l.renewed.After(due):
		return false
	default:
		state.absent = true
		l.states[node] = state
		l.signal()
	}
	return true
}

// signal signals a change of the states.
func (l *leases) signal() {
	l.changes++
	notify.Changed(l.changed)
}
