package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// poolInterval is the shortest time between writes of pools. Every created or deleted Service
// changes their counts; a status once a second is enough.
const poolInterval = time.Second

// ready is the type of the condition of pools and advertisements.
const ready = "Ready"

// pools keeps the status of AddressPools. The snapshot does not contain it: otherwise each change
// of a count would be a change of the pool to every node.
type pools struct {
	client  *client
	events  *events
	written map[string]writtenPool // by name
	at      time.Time              // the time of the last report
	due     bool                   // the last report came too early
}

// A writtenPool is the status that this controller wrote last.
type writtenPool struct {
	uid    types.UID // distinguishes the pool from a later one of the same name, whose status is empty
	status v1alpha1.AddressPoolStatus
}

// report writes what has changed, unless it is too early.
func (p *pools) report(ctx context.Context, snap *cluster.Snapshot, assignments []cluster.Assignment) (errs []error) {
	if p.due = time.Since(p.at) < poolInterval; p.due {
		return nil
	}
	p.at = time.Now()
	statuses := poolStatuses(snap, assignments)
	maps.DeleteFunc(p.written, func(name string, _ writtenPool) bool { _, ok := statuses[name]; return !ok })
	for _, v := range snap.Versions {
		want, ok := statuses[v.Name]
		if !ok || v.Kind != "AddressPool" {
			continue
		}
		have, ok := p.written[v.Name]
		if ok && have.uid == v.UID && equal(have.status, want) {
			continue
		}
		if err := p.write(ctx, v.Name, want); err != nil {
			errs = append(errs, fmt.Errorf("status of pool %s: %w", v.Name, err))
			continue
		}
		p.written[v.Name] = writtenPool{v.UID, want}
	}
	return errs
}

// write writes a status unless the pool has it already. A pool that was deleted meanwhile is no
// error.
func (p *pools) write(ctx context.Context, name string, want v1alpha1.AddressPoolStatus) error {
	live, err := p.client.pool(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || equal(live.Status, want) {
		return err
	}
	keepTime(live.Status.Conditions, want.Conditions)
	err = p.client.patchPool(ctx, name, want)
	if apierrors.IsNotFound(err) {
		return p.missing(ctx, name)
	}
	if err == nil {
		p.record(ctx, live, want.Conditions)
	}
	return err
}

// record sends an Event for each condition that differs from before.
func (p *pools) record(ctx context.Context, was *v1alpha1.AddressPool, now []metav1.Condition) {
	for _, c := range now {
		same := func(o metav1.Condition) bool {
			return o.Type == c.Type && o.Status == c.Status && o.Reason == c.Reason && o.Message == c.Message
		}
		if !slices.ContainsFunc(was.Status.Conditions, same) {
			p.events.recordPool(ctx, was, c)
		}
	}
}

// missing distinguishes a deleted pool, which is no error, from a CRD that is too old to
// have a status.
func (p *pools) missing(ctx context.Context, name string) error {
	if _, err := p.client.pool(ctx, name); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return errors.New("its CRD has no status, and is older than this controller; apply manifests/crds")
}

// keepTime keeps the time of a condition whose status has not changed.
func keepTime(old, now []metav1.Condition) {
	for i := range now {
		for _, o := range old {
			if o.Type == now[i].Type && o.Status == now[i].Status {
				now[i].LastTransitionTime = o.LastTransitionTime
			}
		}
	}
}

// equal compares two statuses without their times: a new time alone is not written.
func equal(a, b v1alpha1.AddressPoolStatus) bool { return reflect.DeepEqual(timeless(a), timeless(b)) }

// timeless returns a copy of s without the times of its conditions.
func timeless(s v1alpha1.AddressPoolStatus) v1alpha1.AddressPoolStatus {
	s = *s.DeepCopy()
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return s
}
