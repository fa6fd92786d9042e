package controller

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const (
	// reporter is the reportingController of Events.
	reporter = "fanfare.io/controller"
	// maxUnsent is how many Events wait while the API server does not accept them.
	maxUnsent = 1000
)

// events sends an Event for each change of a Service's condition. Events that could not be
// sent are retried after the next pass. Beyond a thousand, the oldest are dropped: the
// condition has the same information.
type events struct {
	client   *client
	instance string
	log      *slog.Logger

	mu     sync.Mutex // send is called by many goroutines
	unsent []*eventsv1.Event
}

// recordService sends the Event of a condition that was written.
func (e *events) recordService(ctx context.Context, s *corev1.Service, written cluster.AddressCondition) {
	e.send(ctx, newEvent(s, written, e.instance))
}

// recordUnreserved sends the Event of a deleted Service that asked to keep its address and does not.
func (e *events) recordUnreserved(ctx context.Context, r refusedReservation) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: r.holder.Name.Namespace, Name: r.holder.Name.Name, UID: r.holder.UID, ResourceVersion: r.holder.ResourceVersion}}
	e.send(ctx, newEvent(s, cluster.AddressCondition{Code: cluster.QuotaExceeded, Message: r.why}, e.instance))
}

// recordPool sends the Event of a pool's condition that was written over live. The name of the
// Event is a hash of its content, so a retry after a lost answer creates no second one.
func (e *events) recordPool(ctx context.Context, live *v1alpha1.AddressPool, c metav1.Condition) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%s", live.UID, live.ResourceVersion, c.Reason)
	kind := corev1.EventTypeWarning
	if c.Status == metav1.ConditionTrue || c.Reason == reasonDrain {
		kind = corev1.EventTypeNormal
	}
	e.send(ctx, &eventsv1.Event{
		// Events of objects without a namespace belong here.
		ObjectMeta:          metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%016x", cutName(live.Name), h.Sum64())},
		EventTime:           metav1.NewMicroTime(time.Now()),
		ReportingController: reporter,
		ReportingInstance:   e.instance,
		Action:              "CountAddresses",
		Reason:              c.Reason,
		Type:                kind,
		Note:                c.Message,
		Regarding: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressPool", Name: live.Name, UID: live.UID, ResourceVersion: live.ResourceVersion,
		},
	})
}

// cutName leaves room for what makes an Event's name unique: a pool's alone may be
// as long as a name can be.
func cutName(name string) string { return strings.TrimRight(name[:min(len(name), 200)], ".-") }

// send creates an Event, or keeps it for a retry. More than maxUnsent are dropped, the oldest first.
func (e *events) send(ctx context.Context, ev *eventsv1.Event) error {
	err := e.client.createEvent(ctx, ev)
	switch {
	case err == nil || apierrors.IsAlreadyExists(err):
		return nil // The answer to an earlier attempt was lost.
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err):
		// The namespace is being deleted, and its Events are, too.
		e.log.Debug("event of a deleted namespace", "service", ev.Regarding.Namespace+"/"+ev.Regarding.Name, "reason", ev.Reason)
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		// A retry does not help: the roles are of another version.
		e.log.Warn("event", "service", ev.Regarding.Namespace+"/"+ev.Regarding.Name, "reason", ev.Reason, "err", err)
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsent = append(e.unsent, ev)
	if over := len(e.unsent) - maxUnsent; over > 0 {
		e.log.Warn("events dropped", "count", over, "err", err)
		e.unsent = e.unsent[over:]
	}
	return fmt.Errorf("event for %s/%s: %w", ev.Regarding.Namespace, ev.Regarding.Name, err)
}

// again sends what is unsent, until one fails.
func (e *events) again(ctx context.Context) []error {
	e.mu.Lock()
	unsent := e.unsent
	e.unsent = nil
	e.mu.Unlock()
	for i, ev := range unsent {
		if err := e.send(ctx, ev); err != nil {
			e.mu.Lock()
			e.unsent = append(e.unsent, unsent[i+1:]...)
			e.mu.Unlock()
			return []error{err}
		}
	}
	return nil
}

// newEvent makes an Event whose name is that of the change, so that sending it
// twice makes one.
func newEvent(s *corev1.Service, written cluster.AddressCondition, instance string) *eventsv1.Event {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%s", s.UID, s.ResourceVersion, written.Code)
	kind := corev1.EventTypeWarning
	if written.Assigned && written.Code == cluster.Assigned {
		kind = corev1.EventTypeNormal
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: s.Namespace, Name: fmt.Sprintf("%s.%016x", s.Name, h.Sum64())},
		EventTime:           metav1.NewMicroTime(time.Now()),
		ReportingController: reporter,
		ReportingInstance:   instance,
		Action:              "AssignAddress",
		Reason:              string(written.Code),
		Type:                kind,
		Note:                written.Message,
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
		},
	}
}
