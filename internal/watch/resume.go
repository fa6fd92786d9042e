package watch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// How a watch continues after the connection to the API server was lost: from the known version, as
// if nothing had happened. A thousand speakers that list everything at once are a load that an API
// server may not survive that has just lost its neighbour.
//
// One thing may have happened. The API server may have another etcd, restored from a backup, with
// versions smaller than the known ones, and a watch from a version in the future has no events, for
// hours. So the version is compared first, by a list of one object. If it is smaller, everything is
// listed.

// maxResume is how long after a loss a watch may continue. In that time no API server comes back with
// an older etcd and makes as many changes as the backup lacks. Later it has to list everything, as
// then it also has to because the API server has forgotten what happened.
const maxResume = time.Minute

// unconfirmed is no number of losses: in a pause, nothing may have been open that was lost.
const unconfirmed = -1

// errAgain is that the connection was lost once more.
var errAgain = errors.New("connection lost")

// resume opens a watch from a known version, and tries until it has one. An error means that
// everything has to be listed. An API server that has just started knows no roles yet and forbids
// everything: that is no reason to list.
func (l *listWatch) resume(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	pause, began := backoff, time.Now()
	// client-go does not pause after a watch that fails at once.
	for again := time.Since(l.opened) < time.Second; ; again = true {
		if again {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pause.Step()):
			}
			l.asOf = unconfirmed
		}
		l.opened = time.Now()
		w, err := l.tryResume(ctx, o)
		if faultOf(err) == none {
			return w, err
		}
		if time.Since(began) > maxResume {
			return nil, errAway
		}
	}
}

// tryResume opens a watch from a known version, after it has made sure that the API server is not
// behind that.
func (l *listWatch) tryResume(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	losses := l.api.losses.Load()
	if l.asOf != losses {
		err := l.confirm(ctx, o.ResourceVersion)
		l.api.record(ctx, l.resource, err)
		if err != nil {
			return nil, err
		}
		l.asOf = losses
	}
	w, err := l.watch(ctx, o)
	l.api.record(ctx, l.resource, err)
	if err == nil && l.asOf != l.api.losses.Load() { // client-go retries silently
		w.Stop()
		return nil, errAgain
	}
	return w, err
}

// confirm returns errAway unless the API server's version is the known one or a later one.
func (l *listWatch) confirm(ctx context.Context, known string) error {
	list, err := l.ListWatch.ListWithContext(ctx, metav1.ListOptions{Limit: 1}) // no version: as of now
	if err != nil {
		return err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("list of %s: %w", l.resource, err)
	}
	now, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64)
	if before, bad := strconv.ParseUint(known, 10, 64); err != nil || bad != nil || now < before {
		return errAway
	}
	return nil
}
