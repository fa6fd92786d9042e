package speaker

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/internal/notify"
)

const (
	reportingController = "fanfare.io/speaker"
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
	client   *client
	instance string
	log      *slog.Logger
	wake     chan struct{} // has room for one
	limit    *rate.Limiter

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
	retry := &backoff.ExponentialBackOff{InitialInterval: eventInterval, RandomizationFactor: 0.2, Multiplier: 2, MaxInterval: 2 * time.Minute}
	retry.Reset()
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
			pause = max(pause, retry.NextBackOff())
		} else {
			retry.Reset()
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
func (now observation) members() int { return now.desired.View.Members.CountAlive() }

// crowded reports whether many nodes may report the same.
func (now observation) crowded() bool { return now.members() > crowd }

// queue adds new events to the pending ones, and returns how long to pause after them.
func (r *eventRecorder) queue(now observation) time.Duration {
	var all []event
	r.reported, all = newEvents(r.reported, now, max(1, int(r.limit.TokensAt(now.at))))
	for key, l := range r.recent {
		if now.at.Sub(l.at) > seriesWindow {
			delete(r.recent, key)
		}
	}
	for _, e := range all {
		key := seriesKey{e.regarding.UID, e.regarding.Name, string(e.reason), e.note}
		l, again := r.recent[key]
		shared := now.crowded() && e.regarding.Kind != "Node"
		switch {
		case again && shared:
			continue // another node may have created it
		case !again:
			l.event = r.event(e, now.at, shared)
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
		err := r.write(ctx, r.pending[0])
		switch {
		case err == nil || apierrors.IsAlreadyExists(err): // the response to an earlier attempt was lost
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err):
			// The namespace is being deleted, and its Events are, too.
			r.log.Debug("Event of a deleted namespace not written", "reason", r.pending[0].event.Reason)
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			// A retry would not help: the roles are of another version.
			r.log.Warn("Event not written", "reason", r.pending[0].event.Reason, "err", err)
		default:
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
		err := r.client.repeatEvent(ctx, l.event, eventsv1.EventSeries{Count: l.count, LastObservedTime: metav1.NewMicroTime(l.at)})
		if !apierrors.IsNotFound(err) {
			return err
		}
		// The API server has deleted the first Event of the series.
	}
	return r.client.createEvent(ctx, l.event)
}

// identity returns a hash for the name of an Event, so that writing it twice creates one. The nodes
// are divided into causeWriters groups: a shared Event has the same hash for all nodes of a group
// that report the same in causeWindow.
func (r *eventRecorder) identity(e event, at time.Time, shared bool) uint64 {
	hash := fnv.New64a()
	if !shared {
		fmt.Fprint(hash, r.instance, at.UnixNano(), e.regarding.UID, e.reason, e.note)
		return hash.Sum64()
	}
	fmt.Fprint(hash, r.instance)
	group := hash.Sum64() % causeWriters
	hash.Reset()
	fmt.Fprint(hash, group, at.Truncate(causeWindow).Unix(), e.regarding.UID, e.reason, strings.TrimPrefix(e.note, "node "+r.instance+" "))
	return hash.Sum64()
}

// event returns an Event whose name has its identity.
func (r *eventRecorder) event(e event, at time.Time, shared bool) *eventsv1.Event {
	kind := corev1.EventTypeNormal
	if e.warning {
		kind = corev1.EventTypeWarning
	}
	namespace := e.regarding.Namespace
	if namespace == "" {
		// Kubernetes keeps Events of cluster-scoped objects there.
		namespace = metav1.NamespaceDefault
	}
	name := strings.TrimRight(e.regarding.Name[:min(len(e.regarding.Name), 200)], ".-")
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", name, r.identity(e, at, shared))},
		EventTime:           metav1.NewMicroTime(at),
		ReportingController: reportingController,
		ReportingInstance:   r.instance[:min(len(r.instance), 128)],
		Action:              e.action,
		Reason:              string(e.reason),
		Type:                kind,
		Note:                e.note,
		Regarding:           e.regarding,
	}
}
