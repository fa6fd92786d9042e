package speaker

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/time/rate"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/retry"
	"github.com/fanfare-lb/fanfare/internal/event"
)

const (
	// eventInterval is the shortest time between two observations. States that begin and end in
	// between are only in the log.
	eventInterval = time.Second
	// observeInterval is the time until an observation without a pass, because grace times end.
	observeInterval = 10 * time.Second
	// A node may write eventBurst Events at once, and one more each eventRefill. 1,000
	// nodes with constant changes write 33 a second; the API server keeps each for an hour.
	eventBurst  = 25
	eventRefill = 30 * time.Second
	// In a cluster of more than crowd nodes, at most about causeWriters Events with the same text
	// about one object are stored in causeWindow. The nodes use causeWriters names for them, and
	// create causesPerSecond of them together.
	crowd           = 16
	causeWriters    = 4
	causeWindow     = 10 * time.Minute
	causesPerSecond = 100
	// seriesWindow is how long a repetition counts into the same Event, as in client-go.
	seriesWindow = 6 * time.Minute
)

// An eventRecorder writes Events, beside the loop. It compares observations with what it
// has reported: a change is reported once, in however many passes it is seen and however
// long the API server is unreachable. A nil eventRecorder does nothing.
type eventRecorder struct {
	writer event.Writer
	source event.Source
	log    *slog.Logger
	wake   chan struct{} // has room for one
	limit  *rate.Limiter

	reported reported
	pending  []pendingEvent
	recent   map[seriesKey]pendingEvent
}

// A pendingEvent must be created, or repeated if count is more than one.
type pendingEvent struct {
	event *eventsv1.Event
	count int32
	at    time.Time
}

// A seriesKey is equal for all Events of a series.
type seriesKey struct {
	uid          types.UID
	name         string
	reason, note string
}

// trigger requests an observation.
func (r *eventRecorder) trigger() {
	if r == nil {
		return
	}
	notify.Changed(r.wake)
}

// run writes Events until ctx ends. It observes nothing while Events are pending.
func (r *eventRecorder) run(ctx context.Context, look func() (observation, bool)) {
	if r == nil {
		return
	}
	retries := retry.Backoff(eventInterval, 2*time.Minute)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-time.After(observeInterval):
		}
		pause := eventInterval
		if now, ok := look(); ok && len(r.pending) == 0 {
			pause = max(pause, r.queue(now))
			if !r.await(ctx, now) {
				return
			}
		}
		if err := r.send(ctx); err != nil {
			r.log.Debug("Events not written", "count", len(r.pending), "err", err)
			pause = max(pause, retries.NextBackOff())
		} else {
			retries.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if len(r.pending) > 0 {
			r.trigger()
		}
	}
}

// await waits before Events are created in a crowd, so that all nodes do not create theirs at
// once. It returns false if ctx has ended.
func (r *eventRecorder) await(ctx context.Context, now observation) bool {
	if len(r.pending) == 0 || !now.crowded() {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(rand.N(time.Duration(now.members()) * time.Second / causesPerSecond)):
		return true
	}
}

// members is the number of nodes that are alive.
func (now observation) members() int { return now.desired.Inputs.Members.CountAlive() }

// crowded reports whether many nodes may report the same.
func (now observation) crowded() bool { return now.members() > crowd }

// queue adds new events to the pending ones, and returns how long to pause after them.
func (r *eventRecorder) queue(now observation) time.Duration {
	var all []event.Event
	r.reported, all = newEvents(r.reported, now, max(1, int(r.limit.TokensAt(now.at))))
	for key, l := range r.recent {
		if now.at.Sub(l.at) > seriesWindow {
			delete(r.recent, key)
		}
	}
	for _, e := range all {
		key := seriesKey{e.Regarding.UID, e.Regarding.Name, e.Reason, e.Note}
		l, again := r.recent[key]
		shared := now.crowded() && e.Regarding.Kind != "Node"
		switch {
		case again && shared:
			continue // another node may have created it
		case !again:
			l.event = r.source.New(e, r.identity(e, now.at, shared), now.at)
		}
		l.count, l.at = l.count+1, now.at
		r.recent[key] = l
		r.pending = append(r.pending, l)
	}
	return r.limit.ReserveN(now.at, min(len(all), eventBurst)).DelayFrom(now.at)
}

// send writes pending Events until one fails.
func (r *eventRecorder) send(ctx context.Context) error {
	for len(r.pending) > 0 {
		if err := r.write(ctx, r.pending[0]); err != nil {
			return err
		}
		r.pending = r.pending[1:]
	}
	return nil
}

// write creates an Event, or records a repetition in it.
func (r *eventRecorder) write(ctx context.Context, l pendingEvent) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if l.count > 1 {
		return r.writer.Repeat(ctx, l.event, eventsv1.EventSeries{
			Count: l.count, LastObservedTime: metav1.NewMicroTime(l.at),
		})
	}
	return r.writer.Create(ctx, l.event)
}

// identity returns a hash for the name of an Event, so that writing it twice creates one. The nodes
// are divided into causeWriters groups: a shared Event has the same hash for all nodes of a group
// that report the same in causeWindow.
func (r *eventRecorder) identity(e event.Event, at time.Time, shared bool) uint64 {
	hash := fnv.New64a()
	if !shared {
		fmt.Fprint(hash, r.source.Instance, at.UnixNano(), e.Regarding.UID, e.Reason, e.Note)
		return hash.Sum64()
	}
	fmt.Fprint(hash, r.source.Instance)
	group := hash.Sum64() % causeWriters
	hash.Reset()
	fmt.Fprint(hash, group, at.Truncate(causeWindow).Unix(), e.Regarding.UID, e.Reason,
		strings.TrimPrefix(e.Note, "node "+r.source.Instance+" "))
	return hash.Sum64()
}
