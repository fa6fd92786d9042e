package controller

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/event"
)

// maxUnsent is how many Events wait while the API server does not accept them.
const maxUnsent = 1000

// events sends an Event for each change of a Service's condition. Events that could not be
// sent are retried after the next pass. Beyond a thousand, the oldest are dropped: the
// condition has the same information.
type events struct {
	writer event.Writer
	source event.Source
	log    *slog.Logger

	mu     sync.Mutex // send is called by many goroutines
	unsent []*eventsv1.Event
}

func newEvents(c *client, instance string, log *slog.Logger) *events {
	return &events{
		writer: event.Writer{Client: c.events, Log: log},
		source: event.Source{Controller: "fanfare.io/controller", Instance: instance}, log: log,
	}
}

// recordService sends the Event of a condition that was written.
func (e *events) recordService(ctx context.Context, s *corev1.Service, written cluster.AddressCondition) {
	e.record(ctx, event.Event{
		Regarding: serviceReference(s), Action: "AssignAddress", Reason: string(written.Code), Note: written.Message,
		Warning: !written.Assigned || written.Code != cluster.Assigned,
	})
}

// recordUnreserved sends the Event of a deleted Service that asked to keep its address and does not.
func (e *events) recordUnreserved(ctx context.Context, r refusedReservation) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.holder.Name.Namespace, Name: r.holder.Name.Name, UID: r.holder.UID,
		ResourceVersion: r.holder.ResourceVersion,
	}}
	e.recordService(ctx, s, cluster.AddressCondition{Code: cluster.QuotaExceeded, Message: r.why})
}

// recordPool sends the Event of a pool's condition that was written over live.
func (e *events) recordPool(ctx context.Context, live *v1alpha1.AddressPool, c metav1.Condition) {
	e.record(ctx, event.Event{
		Regarding: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressPool", Name: live.Name, UID: live.UID,
			ResourceVersion: live.ResourceVersion,
		},
		Action: "CountAddresses", Reason: c.Reason, Note: c.Message,
		Warning: c.Status != metav1.ConditionTrue && c.Reason != reasonDrain,
	})
}

func serviceReference(s *corev1.Service) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID,
		ResourceVersion: s.ResourceVersion,
	}
}

// record sends the Event of a change. Its identity is that of the change: the object's version and the reason.
func (e *events) record(ctx context.Context, of event.Event) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%s", of.Regarding.UID, of.Regarding.ResourceVersion, of.Reason)
	e.send(ctx, e.source.New(of, h.Sum64(), time.Now()))
}

// send creates an Event, or keeps it for a retry. More than maxUnsent are dropped, the oldest first.
func (e *events) send(ctx context.Context, ev *eventsv1.Event) error {
	err := e.writer.Create(ctx, ev)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsent = append(e.unsent, ev)
	if over := len(e.unsent) - maxUnsent; over > 0 {
		e.log.Warn("events dropped", "count", over, "err", err)
		e.unsent = e.unsent[over:]
	}
	return err
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
