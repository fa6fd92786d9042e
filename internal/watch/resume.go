package watch

import (
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// How a watch continues from the known version after it has ended, for any reason. If a thousand
// speakers list everything at once, an API server that has just lost its neighbour may not survive
// that load. client-go continues by itself; two things are added.
//
// The API server may have another etcd, restored from a backup, whose versions are smaller than the
// known ones. A watch from a version in the future then has no events, for hours. So after each
// watch is opened, a list of one object returns the API server's version. If that is smaller,
// everything is listed.
//
// An API server that has just started knows no roles yet and forbids everything. client-go would
// list.

// maxResume is how long a watch is retried. In that time no API server comes back with an older
// etcd and makes as many changes as the backup lacks. Later everything is listed, usually because
// the API server itself no longer has the events.
const maxResume = time.Minute

// errList makes the Reflector list everything.
var errList = apierrors.NewResourceExpired("the version may be of another etcd: list everything again")

// resume opens a watch from a known version.
func (l *listWatch) resume(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := l.openConfirmed(ctx, o)
	l.api.record(ctx, l.resource, err)
	switch {
	case faultOf(err) == none:
		l.failing = time.Time{}
		return w, err
	case l.failing.IsZero():
		l.failing = time.Now()
	case time.Since(l.failing) > maxResume:
		l.failing = time.Time{}
		return nil, errList
	}
	// After this error client-go pauses and tries the watch again. After most others it would list.
	return nil, apierrors.NewTooManyRequestsError(err.Error())
}

// openConfirmed opens a watch, and then ensures that the API server is not behind its version. In
// the other order, the API server could be replaced in between.
func (l *listWatch) openConfirmed(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := l.open(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := l.confirm(ctx, o.ResourceVersion); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

// confirm returns errList unless the API server's version is the known one or a later one.
func (l *listWatch) confirm(ctx context.Context, known string) error {
	list, err := l.ListWatch.ListWithContext(ctx, metav1.ListOptions{Limit: 1}) // no version: the current state
	if err != nil {
		return err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("list of %s: %w", l.resource, err)
	}
	now, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64)
	if before, bad := strconv.ParseUint(known, 10, 64); err != nil || bad != nil || now < before {
		return errList
	}
	return nil
}
