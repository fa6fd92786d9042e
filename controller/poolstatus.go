package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
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
	client *client
	events *events
	statuses[v1alpha1.AddressPoolStatus]
}

// statuses are those of one kind that this controller wrote last.
type statuses[S any] struct {
	written map[cluster.Key]writtenStatus[S]
	at      time.Time // the time of the last report
	due     bool      // the last report came too early
}

// A writtenStatus is that of the object with a UID, and not of a later one of the same name, whose status is empty.
type writtenStatus[S any] struct {
	uid    types.UID
	status S
}

// early reports whether the last report was less than poolInterval ago, and then sets due.
func (s *statuses[S]) early() bool {
	if s.due = time.Since(s.at) < poolInterval; !s.due {
		s.at = time.Now()
	}
	return s.due
}

// change writes the wanted statuses that differ from the written ones. A status that cannot be written does not stop
// the others.
func (s *statuses[S]) change(versions []cluster.Version, wanted func(cluster.Version) (S, bool),
	write func(cluster.Version, S) error) (errs []error) {
	before := s.written
	s.written = map[cluster.Key]writtenStatus[S]{}
	for _, v := range versions {
		want, known := wanted(v)
		if !known {
			continue
		}
		have, ok := before[v.Object()]
		if !ok || have.uid != v.UID || !apartFromTimes.DeepEqual(have.status, want) {
			if err := write(v, want); err != nil {
				errs = append(errs, fmt.Errorf("status of %s: %w", v.Object(), err))
				continue
			}
			have = writtenStatus[S]{v.UID, want}
		}
		s.written[v.Object()] = have
	}
	return errs
}

// apartFromTimes compares statuses: a new time alone is not written.
var apartFromTimes = conversion.EqualitiesOrDie(func(_, _ metav1.Time) bool { return true })

// report writes what has changed, unless it is too early.
func (p *pools) report(ctx context.Context, snap *cluster.Snapshot, assignments []cluster.Assignment) []error {
	if p.early() {
		return nil
	}
	all := poolStatuses(snap, assignments)
	return p.change(snap.Versions, func(v cluster.Version) (v1alpha1.AddressPoolStatus, bool) {
		want, ok := all[v.Name]
		return want, ok && v.Kind == "AddressPool"
	}, func(v cluster.Version, want v1alpha1.AddressPoolStatus) error { return p.write(ctx, v.Name, want) })
}

// write writes a status unless the pool has it already. A pool that was deleted meanwhile is no
// error.
func (p *pools) write(ctx context.Context, name string, want v1alpha1.AddressPoolStatus) error {
	live, err := p.client.pool(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || apartFromTimes.DeepEqual(live.Status, want) {
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
		if o := apimeta.FindStatusCondition(old, now[i].Type); o != nil && o.Status == now[i].Status {
			now[i].LastTransitionTime = o.LastTransitionTime
		}
	}
}
