package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/internal/notify"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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
	// minRenewPause is the minimum time between two renewals.
	minRenewPause = 200 * time.Millisecond
)

// leases renews the Lease of this node, and watches those of nodes that gossip does not
// reach (leasewatch.go). Only these: if gossip reaches all nodes, Leases cost a write for
// each node and interval, and no watch.
type leases struct {
	node      string
	client    *LeaseClient // nil without an API server
	interval  time.Duration
	log       *slog.Logger
	changed   chan struct{} // has room for one
	now       chan struct{} // has room for one: renew at once
	processID uint64
	ctx       context.Context // of the watches
	cancel    context.CancelFunc

	mu         sync.Mutex
	uid        types.UID // of this node's Node; empty: not known yet
	record     leaseRecord
	releases   uint64    // how often this node has stopped answering for an address
	renewed    time.Time // when this node's Lease was last renewed
	renewError string
	watched    map[string]context.CancelFunc
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
	return &leases{node: node, client: c, interval: interval, log: log, changed: make(chan struct{}, 1), now: make(chan struct{}, 1), processID: rand.Uint64(),
		ctx: ctx, cancel: cancel, record: leaseRecord{meta: none}, watched: map[string]context.CancelFunc{}, states: map[string]leaseState{}}
}

// run renews this node's Lease until ctx ends. While the API server is unreachable it retries
// silently: other parts report that.
func (l *leases) run(ctx context.Context) {
	if l.client == nil {
		return
	}
	defer l.cancel()
	ticks := time.NewTicker(l.interval)
	defer ticks.Stop()
	for {
		l.renew(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(minRenewPause):
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		case <-l.now:
		}
	}
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

// release records in the Lease that this node has stopped answering for an address. Hosts
// send to this node until the next owner announces it, and an owner that gossip does not
// reach learns only here that it must.
func (l *leases) release() {
	l.mu.Lock()
	l.releases++
	l.record.released = fmt.Sprintf("%x-%d", l.processID, l.releases)
	l.mu.Unlock()
	l.renewNow()
}

// problem says why this node's Lease is not renewed, empty if it is.
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
		l.renewError = fmt.Sprintf("the Lease of this node is not renewed, so that nodes that gossip does not reach take it for dead: %v", err)
	}
}

func (l *leases) renewNow() {
	notify.Changed(l.now)
}
