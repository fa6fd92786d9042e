package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// errStale means that the API server has another version than the snapshot. Nothing was written;
// the watch will report the version, or the next pass reads again.
var errStale = errors.New("the API server knows more than the snapshot")

// stale returns err, or errStale if an object has changed or no longer exists.
func stale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return err
}

// A writer executes the plan. The order of its requests ensures that no address is given twice: see
// the package's documentation.
type writer struct {
	*client
	record  func(context.Context, *corev1.Service, cluster.AddressCondition)
	classes cluster.Classes // of the Services that Fanfare serves
}

// update executes a serviceUpdate: the claims, then the status.
func (w writer) update(ctx context.Context, n serviceUpdate) error {
	live, err := w.service(ctx, n.spec.Name)
	if err != nil {
		return fmt.Errorf("service %s: %w", n.spec.Name, stale(err))
	}
	if !w.same(live, n.spec) {
		return fmt.Errorf("service %s: %w", n.spec.Name, errStale)
	}
	for _, a := range n.disputed {
		if err := w.confirmLost(ctx, a, n.spec.Name); err != nil {
			return fmt.Errorf("claim %s: %w", a, err)
		}
	}
	for _, a := range n.foreign {
		if err := w.confirmForeign(ctx, a, n.spec.Name); err != nil {
			return fmt.Errorf("claim %s: %w", a, err)
		}
	}
	for _, c := range n.secure {
		if err := w.secure(ctx, c, n.spec, live); err != nil {
			return fmt.Errorf("claim %s for %s: %w", c.addr, n.spec.Name, err)
		}
	}
	if !n.writesStatus() {
		return nil
	}
	after, err := w.patchStatus(ctx, live, statusPatch(live, n))
	if err != nil {
		return fmt.Errorf("status of %s: %w", n.spec.Name, stale(err))
	}
	if n.condition != n.spec.Reported {
		w.record(ctx, after, n.condition)
	}
	return nil
}

// same reports whether the Service equals that of the snapshot.
func (w writer) same(live *corev1.Service, spec *cluster.Spec) bool {
	now := specOf(live, w.classes)
	return now != nil && reflect.DeepEqual(now, spec)
}

// specOf parses a Service as the snapshot does. It returns nil for a Service that Fanfare does not
// serve.
func specOf(live *corev1.Service, classes cluster.Classes) *cluster.Spec {
	b := cluster.NewBuilder()
	b.Limit(cluster.Scope{Classes: classes})
	b.Set(live, "")
	for s := range b.Snapshot().Services.All() {
		return s.Spec
	}
	return nil
}

// classOf returns the class of a Service as text.
func classOf(live *corev1.Service) string {
	if c := live.Spec.LoadBalancerClass; c != nil {
		return "class " + *c
	}
	return "no class"
}
