package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// leasePatience is for how many intervals a renewal counts: one may be late, and
	// one may be lost.
	leasePatience = 3
	// maxLeases is how many Leases a speaker watches at most: if more nodes are dead at a
	// time, it is not by their Leases that the cluster is saved.
	maxLeases = 16
)

// leaser is a Leaser, or what a test has in its place.
type leaser interface {
	renew(ctx context.Context, node string, uid types.UID, interval time.Duration) error
	watch(ctx context.Context, node string, seen func(renewal string)) error
}

// leases renews the Lease of this node, and watches those of nodes that are not heard
// of: only these, so that a cluster in which everybody is heard of costs a write for
// each node and interval, and no reader.
type leases struct {
	node     string
	leaser   leaser // nil without an API server
	interval time.Duration
	log      *slog.Logger
	changed  chan struct{} // has room for one
	ctx      context.Context
	close    context.CancelFunc

	mu       sync.Mutex
	uid      types.UID
	watched  map[string]context.CancelFunc
	renewals map[string]time.Time // when one was seen, by our own clock
	count    uint64               // of changes to renewals
	trouble  string
}

func newLeases(node string, l *Leaser, interval time.Duration, log *slog.Logger) *leases {
	ctx, stop := context.WithCancel(context.Background())
	out := &leases{node: node, interval: interval, log: log, changed: make(chan struct{}, 1), ctx: ctx, close: stop,
		watched: map[string]context.CancelFunc{}, renewals: map[string]time.Time{}}
	if l != nil && interval > 0 { // else a nil Leaser were a leaser
		out.leaser = l
	}
	return out
}

// patience is how long a renewal counts.
func (l *leases) patience() time.Duration { return leasePatience * l.interval }

// own says which Node the Lease of this node belongs to.
func (l *leases) own(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uid = uid
}

func (l *leases) generation() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// problem says why this node's Lease is not renewed, empty when it is.
func (l *leases) problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// run renews this node's Lease until ctx ends. An API server that is away is no reason to
// give up, nor for a word: it is said elsewhere.
func (l *leases) run(ctx context.Context) {
	if l.leaser == nil {
		return
	}
	defer l.close()
	ticks := time.NewTicker(l.interval)
	defer ticks.Stop()
	for {
		l.mu.Lock()
		uid := l.uid
		l.mu.Unlock()
		if uid != "" {
			err := l.leaser.renew(ctx, l.node, uid, l.interval)
			l.mu.Lock()
			l.trouble = ""
			if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
				l.trouble = fmt.Sprintf("the Lease of this node is not renewed, so that nodes that do not hear it take it for dead: %v", err)
			}
			l.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// follow watches the Leases of these nodes, and of no others, and returns when they were
// seen to be renewed.
func (l *leases) follow(nodes []string) map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaser == nil {
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
			delete(l.renewals, n)
		}
	}
	for n := range want {
		if l.watched[n] == nil {
			ctx, stop := context.WithCancel(l.ctx)
			l.watched[n] = stop
			go l.watch(ctx, n)
		}
	}
	return maps.Clone(l.renewals)
}

// watch watches one Lease until ctx ends. What it says first is from before; a renewal
// is that it says something else later. No two clocks are compared.
func (l *leases) watch(ctx context.Context, node string) {
	retry := &backoff.ExponentialBackOff{InitialInterval: time.Second, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 10 * time.Second}
	retry.Reset()
	var known string
	for ctx.Err() == nil {
		err := l.leaser.watch(ctx, node, func(renewal string) {
			if known != "" && renewal != known {
				l.saw(ctx, node)
			}
			known = renewal
			retry.Reset()
		})
		l.log.Debug("lease", "node", node, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// saw takes down that a Lease was renewed. When that no longer counts it is looked at
// again.
func (l *leases) saw(ctx context.Context, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	l.renewals[node] = time.Now()
	l.note()
	time.AfterFunc(l.patience(), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.note()
	})
}

// note says that there is something to look at.
func (l *leases) note() {
	l.count++
	select {
	case l.changed <- struct{}{}:
	default:
	}
}
