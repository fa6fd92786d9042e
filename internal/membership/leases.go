package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
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
	// leaseAbsence is for how many intervals a Lease must not have changed, while this
	// node's did, to say that its node has gone. One renewal may come late.
	leaseAbsence = 2
	// maxLeases is how many Leases a speaker watches at most: if more nodes are dead at a
	// time, it is not by their Leases that the cluster is saved.
	maxLeases = 16
	// newsPause is the least time between two renewals, however much there is to say.
	newsPause = 200 * time.Millisecond
)

// leaser is a Leaser, or what a test has in its place.
type leaser interface {
	renew(ctx context.Context, node string, uid types.UID, interval time.Duration, says bulletin) error
	watch(ctx context.Context, node string, seen func(bulletin)) error
}

// leases renews the Lease of this node, and watches those of nodes that are not heard
// of: only these, so that a cluster in which everybody is heard of costs a write for
// each node and interval, and no reader. The Lease also says what they would hear.
type leases struct {
	node     string
	leaser   leaser // nil without an API server
	interval time.Duration
	log      *slog.Logger
	changed  chan struct{} // has room for one
	news     chan struct{} // has room for one: the Lease has to say something at once
	boot     uint64        // of this process, at random
	ctx      context.Context
	close    context.CancelFunc

	mu       sync.Mutex
	uid      types.UID
	says     bulletin
	released uint64 // how often this node has stopped to answer for something
	watched  map[string]context.CancelFunc
	sights   map[string]sight
	renewed  time.Time // when this node's Lease was renewed last
	count    uint64    // of changes to sights
	resigned bool      // somebody who is watched has stopped to answer for something
	trouble  string
}

// A sight is what the Lease of a node has shown since it is watched.
type sight struct {
	since   time.Time // when it began to be watched
	says    bulletin  // empty until it was read
	renewed time.Time // when it was seen to be renewed, by our own clock; zero: it was not
	// absent says that the API server has said anew, after this node's own renewals went
	// through, that there was none.
	absent bool
}

func newLeases(node string, l *Leaser, interval time.Duration, log *slog.Logger) *leases {
	ctx, stop := context.WithCancel(context.Background())
	// Until it is known by which interfaces this node can answer there are none.
	nothing, _ := EncodeInterfaces(nil)
	out := &leases{node: node, interval: interval, log: log, changed: make(chan struct{}, 1), news: make(chan struct{}, 1), boot: rand.Uint64(),
		ctx: ctx, close: stop, says: bulletin{interfaces: nothing}, watched: map[string]context.CancelFunc{}, sights: map[string]sight{}}
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
	if l.uid != uid {
		l.uid = uid
		l.hurry()
	}
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
		l.renew(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(newsPause):
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		case <-l.news:
		}
	}
}

// renew renews this node's Lease, if it is known whose it is.
func (l *leases) renew(ctx context.Context) {
	l.mu.Lock()
	uid, says := l.uid, l.says
	l.mu.Unlock()
	if l.leaser == nil || uid == "" {
		return
	}
	err := l.leaser.renew(ctx, l.node, uid, l.interval, says)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble = ""; err == nil {
		l.renewed = time.Now()
	}
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
		l.trouble = fmt.Sprintf("the Lease of this node is not renewed, so that nodes that do not hear it take it for dead: %v", err)
	}
}

// tell has the Lease say by which interfaces this node can answer: with the next renewal,
// or now.
func (l *leases) tell(interfaces []byte, now bool) {
	l.mu.Lock()
	l.says.interfaces = interfaces
	l.mu.Unlock()
	if now {
		l.hurry()
	}
}

// release has the Lease say at once that this node has stopped to answer for something.
// Hosts go on to send to it until they hear from whoever answers now, who cannot know that
// they have to, where it does not hear this node.
func (l *leases) release() {
	l.mu.Lock()
	l.released++
	l.says.released = fmt.Sprintf("%x-%d", l.boot, l.released)
	l.mu.Unlock()
	l.hurry()
}

func (l *leases) hurry() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// follow watches the Leases of these nodes, and of no others, and returns what they have
// shown.
func (l *leases) follow(nodes []string) map[string]sight {
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
			delete(l.sights, n)
		}
	}
	for n := range want {
		if l.watched[n] == nil {
			ctx, stop := context.WithCancel(l.ctx)
			l.watched[n], l.sights[n] = stop, sight{since: time.Now()}
			go l.watch(ctx, n)
		}
	}
	return maps.Clone(l.sights)
}

// resignations says, once, whether somebody who is watched has stopped to answer for
// something.
func (l *leases) resignations() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := l.resigned
	l.resigned = false
	return is
}

// watch watches one Lease until ctx ends. What it says first is from before; a renewal
// is that it says something else later. No two clocks are compared. When it has not
// changed for long enough the watch begins anew: a watch may be dead without a word, and
// one that begins is told what is there.
func (l *leases) watch(ctx context.Context, node string) {
	retry := &backoff.ExponentialBackOff{InitialInterval: time.Second, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 5 * time.Second}
	retry.Reset()
	var known string
	var since time.Time // when known was heard first
	for ctx.Err() == nil {
		attempt, again := context.WithCancel(ctx)
		quiet := time.AfterFunc(math.MaxInt64, again)
		err := l.leaser.watch(attempt, node, func(b bulletin) {
			retry.Reset()
			l.read(ctx, node, b)
			if b.renewal == known {
				if !l.missed(ctx, node, since) {
					quiet.Reset(l.interval)
				}
				return
			}
			if known != "" {
				l.saw(ctx, node)
			}
			known, since = b.renewal, time.Now()
			quiet.Reset(leaseAbsence * l.interval)
		})
		meant := attempt.Err() != nil
		quiet.Stop()
		again()
		l.log.Debug("lease", "node", node, "err", err)
		if meant {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// read takes down what a Lease says. What was released counts also when it is read first:
// that may have been between the loss of the other and now.
func (l *leases) read(ctx context.Context, node string, b bulletin) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	seen := l.sights[node]
	if b.released != "" && b.released != seen.says.released {
		l.resigned = true
		l.note()
	}
	seen.says = b
	l.sights[node] = seen
}

// saw takes down that a Lease was renewed. When that no longer counts it is looked at
// again.
func (l *leases) saw(ctx context.Context, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	seen := l.sights[node]
	seen.renewed, seen.absent = time.Now(), false
	l.sights[node] = seen
	l.note()
	time.AfterFunc(l.patience(), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.note()
	})
}

// missed is told that a Lease is as it was at a time, and says whether that shows that
// its node is absent: if renewals have been due since, and the API server has taken ours.
// One that takes nobody's shows nothing.
func (l *leases) missed(ctx context.Context, node string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := l.sights[node]
	switch due := since.Add(l.interval); {
	case ctx.Err() != nil:
		return false
	case seen.absent:
	case time.Since(since) < leaseAbsence*l.interval || !l.renewed.After(due):
		return false
	default:
		seen.absent = true
		l.sights[node] = seen
		l.note()
	}
	return true
}

// note says that there is something to look at.
func (l *leases) note() {
	l.count++
	select {
	case l.changed <- struct{}{}:
	default:
	}
}
