package speaker

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// reportingController is who Events say that they are from.
	reportingController = "fanfare.io/speaker"
	// eventInterval is the least time between two looks: what comes and goes in
	// between is in the log, and no Event.
	eventInterval = time.Second
	// lookInterval is when to look although no pass was made: patience ends.
	lookInterval = 10 * time.Second
	// Every node has eventBurst Events at once, and one each eventRefill after
	// that. 1,000 nodes that all have something to tell all the time write 33 a
	// second; the API server keeps each for an hour.
	eventBurst  = 25
	eventRefill = 30 * time.Second
	// seriesWindow is for how long the same again counts as one more of the same
	// Event; client-go's recorder has the same.
	seriesWindow = 6 * time.Minute
)

// A herald writes Events, beside the loop. It compares what is so with what it
// has told, so that a change is told once, however many passes see it and however
// long the API server is away. A nil herald does nothing.
type herald struct {
	client   *client
	instance string
	log      *slog.Logger
	wake     chan struct{} // capacity 1
	limit    *rate.Limiter

	told   told
	unsent []letter
	recent map[subject]letter
}

// A letter is an Event to be written for the first time, or again when count is
// more than one.
type letter struct {
	event *eventsv1.Event
	count int32
	at    time.Time
}

// A subject is what two Events of one series have in common.
type subject struct {
	uid          types.UID
	name         string
	reason, note string
}

// note says that there may be something to tell.
func (h *herald) note() {
	if h == nil {
		return
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run tells until ctx ends. What could not be written is written later, and
// nothing else meanwhile.
func (h *herald) run(ctx context.Context, look func() (scene, bool)) {
	if h == nil {
		return
	}
	retry := &backoff.ExponentialBackOff{InitialInterval: eventInterval, RandomizationFactor: 0.2, Multiplier: 2, MaxInterval: 2 * time.Minute}
	retry.Reset()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		case <-time.After(lookInterval):
		}
		pause := eventInterval
		if is, ok := look(); ok && len(h.unsent) == 0 {
			pause = max(pause, h.observe(is))
		}
		if err := h.send(ctx); err != nil {
			h.log.Debug("Events not written", "count", len(h.unsent), "err", err)
			pause = max(pause, retry.NextBackOff())
		} else {
			retry.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if len(h.unsent) > 0 {
			h.note()
		}
	}
}

// observe makes letters of what is new, and returns how long to be silent for it.
func (h *herald) observe(is scene) time.Duration {
	var all []event
	h.told, all = news(h.told, is, max(1, int(h.limit.TokensAt(is.at))))
	for key, l := range h.recent {
		if is.at.Sub(l.at) > seriesWindow {
			delete(h.recent, key)
		}
	}
	for _, e := range all {
		key := subject{e.regarding.UID, e.regarding.Name, string(e.reason), e.note}
		l, again := h.recent[key]
		if !again {
			l.event = h.event(e, is.at)
		}
		l.count, l.at = l.count+1, is.at
		h.recent[key] = l
		h.unsent = append(h.unsent, l)
	}
	return h.limit.ReserveN(is.at, min(len(all), eventBurst)).DelayFrom(is.at)
}

// send writes what is unsent, until one fails.
func (h *herald) send(ctx context.Context) error {
	for len(h.unsent) > 0 {
		err := h.write(ctx, h.unsent[0])
		switch {
		case err == nil || apierrors.IsAlreadyExists(err): // The answer to an earlier attempt was lost.
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err):
			// It will not get better: the namespace is being deleted, or the roles are
			// not those of this version.
			h.log.Warn("Event not written", "reason", h.unsent[0].event.Reason, "err", err)
		default:
			return err
		}
		h.unsent = h.unsent[1:]
	}
	return nil
}

func (h *herald) write(ctx context.Context, l letter) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if l.count > 1 {
		err := h.client.repeatEvent(ctx, l.event, eventsv1.EventSeries{Count: l.count, LastObservedTime: metav1.NewMicroTime(l.at)})
		if !apierrors.IsNotFound(err) {
			return err
		}
		// The API server has forgotten it.
	}
	return h.client.createEvent(ctx, l.event)
}

// event makes an Event whose name is its own, so that writing it twice makes one.
func (h *herald) event(e event, at time.Time) *eventsv1.Event {
	hash := fnv.New64a()
	fmt.Fprint(hash, h.instance, at.UnixNano(), e.regarding.UID, e.reason, e.note)
	kind := corev1.EventTypeNormal
	if e.warning {
		kind = corev1.EventTypeWarning
	}
	namespace := e.regarding.Namespace
	if namespace == "" {
		// Where Events of what has no namespace belong.
		namespace = metav1.NamespaceDefault
	}
	name := strings.TrimRight(e.regarding.Name[:min(len(e.regarding.Name), 200)], ".-")
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", name, hash.Sum64())},
		EventTime:           metav1.NewMicroTime(at),
		ReportingController: reportingController,
		ReportingInstance:   h.instance[:min(len(h.instance), 128)],
		Action:              e.action,
		Reason:              string(e.reason),
		Type:                kind,
		Note:                e.note,
		Regarding:           e.regarding,
	}
}
