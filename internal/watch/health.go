package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A fault is a kind of reason why a resource cannot be read.
type fault int

const (
	none        fault = iota
	missing           // there is no such resource
	forbidden         // we may not read it
	unreachable       // no answer, or an invalid one
)

// faultOf classifies an error of the API server or of the connection to it. Errors that are
// part of the protocol, such as an expired version, are no fault: the Reflector lists again.
func faultOf(err error) fault {
	switch {
	case err == nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err),
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return none
	case apierrors.IsNotFound(err):
		return missing
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return forbidden
	}
	return unreachable
}

// A readFailure means that a resource cannot be read. It begins with the first failure and ends
// with the first answer, regardless of client-go's retries.
type readFailure struct {
	fault fault
	since time.Time
	err   error // the first one: later ones may differ in a port only
}

// record records the result of a request: metrics, one line in the log, and a Problem while the
// resource cannot be read. Earlier content stays.
func (a *API) record(ctx context.Context, r resource, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return // this process ended the request; checked under the lock, like endSecret
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		a.refused()
	}
	old, now := a.failures[r], faultOf(err)
	switch {
	case old.fault == now || now == none && err != nil:
		return
	case now == none:
		delete(a.failures, r)
		a.log.Info("API server: readable again", "resource", r.String(), "after",
			time.Since(old.since).Round(time.Millisecond))
	default:
		t := readFailure{now, old.since, err}
		if old.fault == none {
			t.since = time.Now()
		}
		a.failures[r] = t
		if !t.refusedSecret(r) { // the Problem of its BGPPeer is logged instead
			a.log.Warn("API server: cannot be read", "resource", r.String(), "err", t.problem(r).Message)
		}
	}
	a.metrics.of(r).failing(a.failures[r].since)
	a.refuseSecret(r)
	a.recordOutage(a.failures[r])
	a.builder.Report("API server", a.healthProblems())
	notify.Changed(a.changed)
}

// recordOutage keeps the first failure until all are over, so that an outage of the whole API server is one Problem
// and one change, although each resource fails separately. It begins now, also if the resource could not be
// read before for another reason.
func (a *API) recordOutage(t readFailure) {
	for _, other := range a.failures {
		if other.fault != unreachable {
			continue
		}
		if a.outage.fault == none {
			a.outage = readFailure{unreachable, time.Now(), t.err}
		}
		return
	}
	a.outage = readFailure{}
}

// healthProblems returns one Problem if the API server does not answer, and one for each resource
// that this process may not read.
func (a *API) healthProblems() []cluster.Problem {
	var p []cluster.Problem
	for r, t := range a.failures {
		if t.fault != unreachable && !t.refusedSecret(r) { // the Builder has those
			p = append(p, t.problem(r))
		}
	}
	if a.outage.fault != none {
		p = append(p, a.outage.problem(resource{}))
	}
	slices.SortFunc(p, cluster.Problem.Compare)
	return p
}

// InStep reports whether Snapshot is the API server's state, as far as is known. A resource that
// the API server does not know is in step: it has no objects.
func (a *API) InStep() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.life.Err() != nil {
		return false // the watches have ended
	}
	for _, t := range a.failures {
		if t.fault != missing {
			return false
		}
	}
	return true
}

// serverKey is the object of Problems of the API server itself.
var serverKey = cluster.Key{Kind: "API server"}

// problem says what a user must do: install a CRD, grant a right, or check the API server.
func (f readFailure) problem(r resource) cluster.Problem {
	since := f.since.UTC().Format(time.RFC3339)
	switch {
	case f.fault == missing && r.ours():
		return cluster.Problem{
			Object:  cluster.Named("CustomResourceDefinition", r.GroupResource().String()),
			Message: fmt.Sprintf("is not installed; apply manifests/crds/%s_%s.yaml", r.Group, r.Resource),
		}
	case f.fault == missing || f.fault == forbidden:
		return cluster.Problem{
			Object: serverKey,
			Message: fmt.Sprintf("%s cannot be read since %s: %s; apply the roles in manifests, or "+
				"look at the credentials", r, since, f.err),
		}
	}
	return cluster.Problem{
		Object: serverKey, Message: fmt.Sprintf("does not answer since %s: %s; what was known then stays in use", since,
			f.err),
	}
}
