package watch

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// secret returns one Secret by its name: roles name the Secrets that speakers may read, and permit
// no list of all. A Secret that may not be read is a Problem of the BGPPeers that name it, and does
// not affect anything else.
func (a *API) secret(name string) resource {
	return resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("secrets"),
		one:                  name,
		namespace:            a.namespace,
		fields:               "type=" + string(corev1.SecretTypeBasicAuth),
		optional:             true,
	}
}

// startSecrets watches the Secrets that peers name, and follows the peers from then on. It returns
// once each was read or refused: a speaker that restarts opens all sessions at once.
func (a *API) startSecrets(ctx context.Context) error {
	a.mu.Lock()
	a.secrets = map[string]context.CancelFunc{}
	started := a.watchSecrets()
	a.mu.Unlock()
	for _, synced := range started {
		select {
		case <-synced:
		case <-ctx.Done():
			return fmt.Errorf("secrets not read: %w", context.Cause(ctx))
		}
	}
	return nil
}

// watchSecrets watches the Secrets that are needed now, and ends the other watches. The channel of
// a new watch is closed once it has read its Secret, or was refused.
func (a *API) watchSecrets() (started []<-chan struct{}) {
	if a.secrets == nil {
		return nil
	}
	names, changed := a.builder.SecretNames()
	if !changed {
		return nil
	}
	for name := range a.secrets {
		if _, needed := slices.BinarySearch(names, name); !needed {
			a.endSecret(name)
		}
	}
	for _, name := range names {
		if a.secrets[name] != nil {
			continue
		}
		ctx, end := context.WithCancel(a.life)
		synced, err := watchResource[*corev1.Secret](ctx, a, a.secret(name))
		if err != nil {
			panic(fmt.Sprintf("BUG: %v", err)) // other resources have clients of the same configuration
		}
		a.secrets[name], started = end, append(started, synced)
	}
	return started
}

// endSecret ends the watch on a Secret, and forgets its content.
func (a *API) endSecret(name string) {
	a.secrets[name]()
	delete(a.secrets, name)
	r := a.secret(name)
	delete(a.failures, r)
	a.refuseSecret(r)
	a.recordOutage(readFailure{})
	a.builder.Report("API server", a.healthProblems())
	a.builder.Delete(cluster.Key{Kind: "Secret", Name: cluster.Name{Namespace: r.namespace, Name: name}})
}

// isSecret reports whether a resource is one Secret: no other Secrets are watched.
func (r resource) isSecret() bool { return r.Resource == "secrets" }

// refuseSecret records in the Builder whether a Secret may be read.
func (a *API) refuseSecret(r resource) {
	if r.isSecret() {
		a.builder.RefuseSecret(r.one, a.failures[r].refusedSecret(r))
	}
}

// refusedSecret reports whether the role does not let this process read a Secret.
func (f readFailure) refusedSecret(r resource) bool {
	return r.isSecret() && f.fault == forbidden && apierrors.IsForbidden(f.err)
}
