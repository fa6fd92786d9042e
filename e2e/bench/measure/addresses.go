package measure

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Addresses records when a watching client saw Services get their addresses.
type Addresses struct {
	mu      sync.Mutex
	seen    map[string]Assigned
	changed chan struct{} // closed and replaced at each addition
	err     error
}

// Assigned is a Service's address and the time at which it was seen.
type Assigned struct {
	Addr string
	At   time.Time
}

// WatchAddresses watches the Services of a namespace until ctx ends.
func WatchAddresses(ctx context.Context, core *rest.RESTClient, namespace string) (*Addresses, error) {
	w, err := core.Get().Namespace(namespace).Resource("services").
		VersionedParams(&metav1.ListOptions{Watch: true, ResourceVersion: "0"}, metav1.ParameterCodec).
		Timeout(24 * time.Hour).Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch Services: %w", err)
	}
	t := &Addresses{seen: map[string]Assigned{}, changed: make(chan struct{})}
	go func() {
		for e := range w.ResultChan() {
			if s, ok := e.Object.(*corev1.Service); ok {
				t.record(s)
			}
		}
		t.end(fmt.Errorf("the watch on Services ended: %w", context.Cause(ctx)))
	}()
	return t, nil
}

func (t *Addresses) record(s *corev1.Service) {
	in := s.Status.LoadBalancer.Ingress
	if len(in) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.seen[s.Name]; !ok {
		t.seen[s.Name] = Assigned{in[0].IP, time.Now()}
		t.notify()
	}
}

func (t *Addresses) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	t.notify()
}

func (t *Addresses) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Of waits until a Service has an address.
func (t *Addresses) Of(ctx context.Context, name string) (Assigned, error) {
	for {
		t.mu.Lock()
		is, ok := t.seen[name]
		changed, err := t.changed, t.err
		t.mu.Unlock()
		if ok || err != nil {
			return is, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return is, fmt.Errorf("service %s has no address: %w", name, ctx.Err())
		}
	}
}

// Forget removes a name, so that Of waits for its next address.
func (t *Addresses) Forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.seen, name)
}
