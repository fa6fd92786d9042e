package event

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// An Event is what a process reports about an object.
type Event struct {
	Regarding            corev1.ObjectReference
	Action, Reason, Note string
	Warning              bool
}

// A Source is the process that reports.
type Source struct {
	Controller string // such as fanfare.io/speaker
	Instance   string // the pod or the node; cut at 128 bytes, the API server's limit
}

// New returns an Event to write, whose name has an identity: Events with one identity are one.
func (s Source) New(e Event, identity uint64, at time.Time) *eventsv1.Event {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	namespace := e.Regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // Kubernetes keeps Events of cluster-scoped objects there
	}
	// A name has at most 253 bytes, and an object's alone may have as many.
	name := strings.TrimRight(e.Regarding.Name[:min(len(e.Regarding.Name), 200)], ".-")
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", name, identity)},
		EventTime:           metav1.NewMicroTime(at),
		ReportingController: s.Controller,
		ReportingInstance:   s.Instance[:min(len(s.Instance), 128)],
		Action:              e.Action,
		Reason:              e.Reason,
		Type:                kind,
		Note:                e.Note,
		Regarding:           e.Regarding,
	}
}

// A Writer writes Events to an API server.
type Writer struct {
	Client rest.Interface // of the group events.k8s.io
	Log    *slog.Logger
}

// Create creates an Event. The error is of an attempt that is worth repeating: an Event that exists already, whose
// namespace is being deleted, or that the API server will never accept, is done with.
func (w Writer) Create(ctx context.Context, e *eventsv1.Event) error {
	err := w.Client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	return w.judge(e, err)
}

// Repeat records in an existing Event how often it occurred. If the API server has deleted it, Repeat creates it
// again.
func (w Writer) Repeat(ctx context.Context, e *eventsv1.Event, s eventsv1.EventSeries) error {
	body, err := json.Marshal(map[string]any{"series": s})
	if err != nil {
		return err
	}
	err = w.Client.Patch(types.MergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(body).Do(
		ctx).Error()
	if apierrors.IsNotFound(err) {
		return w.Create(ctx, e)
	}
	return w.judge(e, err)
}

// judge returns the errors of attempts that are worth repeating, and logs the others.
func (w Writer) judge(e *eventsv1.Event, err error) error {
	about := []any{"object", e.Regarding.Kind + " " + e.Regarding.Namespace + "/" + e.Regarding.Name, "reason",
		e.Reason}
	switch {
	case err == nil || apierrors.IsAlreadyExists(err): // the answer to an earlier attempt was lost
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err):
		w.Log.Debug("Event of a deleted namespace not written", about...) // its Events are deleted, too
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		// The roles are of another version: the next attempt would fail as well.
		w.Log.Warn("Event not written", append(about, "err", err)...)
		return nil
	}
	return fmt.Errorf("event for %s/%s: %w", e.Regarding.Namespace, e.Regarding.Name, err)
}
