package membership

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

const (
	// leaseValidity is for how many intervals a renewal counts: one may be late, and
	// one may be lost.
	leaseValidity = 3
	// absentAfter is for how many intervals a Lease must not have changed, while this node's
	// did, for its node to be absent. One renewal may be late.
	absentAfter = 2
	// maxLeases is how many Leases a speaker watches at most: if more nodes are dead at a
	// time, their Leases do not help the cluster.
	maxLeases = 16
	// idleInterval is how often a Lease is renewed while gossip reaches all nodes: no node reads it.
	idleInterval = time.Minute
	// renewalsPerSecond is how fast all nodes together begin to renew when a node falls silent.
	renewalsPerSecond = 200
	// rewatchPause is the minimum time between two watches of different nodes.
	rewatchPause = time.Second
	// minRenewPause is the minimum time between two renewals.
	minRenewPause = 200 * time.Millisecond
)

// leases renews the Lease of this node, and watches only the Leases of nodes that gossip does not
// reach (leasewatch.go). While gossip reaches all nodes, Leases cost a write for each node and
// idleInterval, and no watch. If two nodes do not reach each other, each of them renews its Lease
// each interval and watches the other's.
type leases struct {
	node     string
	client   *LeaseClient // nil without an API server
	interval time.Duration
	log      *slog.Logger
	changed  chan struct{}   // has room for one
	now      chan struct{}   // has room for one: renew at once
	ctx      context.Context // of the watches
	cancel   context.CancelFunc

	mu         sync.Mutex
	uid        types.UID // of this node's Node; empty: not known yet
	record     leaseRecord
	renewed    time.Time // when this node's Lease was last renewed
	renewError string
	watched    []string           // sorted, all in states
	stopWatch  context.CancelFunc // ends the watch of watched
	rewatched  time.Time          // when that watch began
	members    int                // that renew Leases, including this node
	urgent     time.Time          // until when the Lease is renewed each interval
	hurry      chan struct{}      // has room for one: it has become urgent
	again      bool               // the next renewal is followed by another one soon
	states     map[string]leaseState
	changes    uint64 // of states
	released   bool   // a watched node has stopped answering for an address
}

func newLeases(node string, c *LeaseClient, interval time.Duration, log *slog.Logger) *leases {
	ctx, cancel := context.WithCancel(context.Background())
	none, _ := EncodeInterfaces(nil)
	if interval == 0 {
		c = nil
	}
	return &leases{node: node, client: c, interval: interval, log: log, changed: make(chan struct{}, 1),
		now: make(chan struct{}, 1), ctx: ctx, cancel: cancel, record: leaseRecord{meta: none}, stopWatch: func() {},
		hurry: make(chan struct{}, 1), states: map[string]leaseState{}}
}

// run renews this node's Lease until ctx ends. While the API server is unreachable it retries
// silently: other parts report that.
func (l *leases) run(ctx context.Context) {
	if l.client == nil {
		return
	}
	defer l.cancel()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.hurry:
			l.mu.Lock()
			next.Reset(rand.N(l.spread()))
			l.mu.Unlock()
			continue
		case <-next.C:
		case <-l.now:
		}
		l.renew(ctx)
		next.Reset(l.pause(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-time.After(minRenewPause):
		}
	}
}

// spread is the time in which all nodes renew their Leases once, if all do. In a small cluster it
// is short, so that nodes that do not reach each other soon know that they are alive; in a large
// one it is the interval. The caller holds mu.
func (l *leases) spread() time.Duration {
	return min(l.interval, max(minRenewPause, time.Duration(l.members)*time.Second/renewalsPerSecond))
}

// pause is the time from one renewal to the next: idleInterval, or the interval while a node that
// gossip does not reach may be alive. Such a node is not alive if it is absent or, without a Lease,
// after it was watched for a while.
func (l *leases) pause(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.states {
		if !s.absent && (!s.seen.IsZero() || now.Sub(s.since) < l.validity()) {
			l.urgent = now.Add(l.validity())
		}
	}
	switch {
	case now.Before(l.urgent) && l.again:
		// The other node may have read the Lease after the first renewal: only the next one is a change.
		l.again = false
		return min(l.interval, time.Second+l.spread())
	case now.Before(l.urgent):
		return l.interval
	}
	return max(l.interval, idleInterval-rand.N(idleInterval/10)) // spreads nodes that started together
}

// setNode sets the UID of this node's Node, which owns the Lease.
func (l *leases) setNode(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.uid != uid {
		l.uid = uid
		l.renewNow()
	}
}

// setMeta sets the metadata of the Lease: with the next renewal, or now.
func (l *leases) setMeta(meta []byte, now bool) {
	l.mu.Lock()
	l.record.meta = meta
	l.mu.Unlock()
	if now {
		l.renewNow()
	}
}

// release records in the Lease that this node has stopped answering for an address. Hosts send to
// this node until the next owner announces the address, and an owner that gossip does not reach
// learns only from the Lease that it must.
func (l *leases) release() {
	l.mu.Lock()
	l.record.released = crand.Text()
	l.mu.Unlock()
	l.renewNow()
}

// problem returns why this node's Lease is not renewed, empty if it is.
func (l *leases) problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewError
}

// renew renews this node's Lease once its owner is known.
func (l *leases) renew(ctx context.Context) {
	l.mu.Lock()
	uid, record := l.uid, l.record
	l.mu.Unlock()
	if l.client == nil || uid == "" {
		return
	}
	err := l.client.renew(ctx, l.node, uid, l.interval, record)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewError = ""; err == nil {
		l.renewed = time.Now()
	}
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
		l.renewError = fmt.Sprintf("the Lease of this node is not renewed, so that nodes that gossip does not reach "+
			"take it for dead: %v", err)
	}
}

func (l *leases) renewNow() {
	notify.Changed(l.now)
}
