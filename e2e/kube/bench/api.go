package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

// namespace is where all Services are.
const namespace = "shop"

// An api writes Services and EndpointSlices, in protobuf: what this program costs
// is taken from those that it measures.
type api struct{ core, discovery *rest.RESTClient }

func newAPI(cfg *rest.Config) (*api, error) {
	core, discovery, err := measure.Clients(cfg)
	return &api{core, discovery}, err
}

// createService returns the Service as the API server made it.
func (a *api) createService(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	out := &corev1.Service{}
	return out, a.core.Post().Namespace(namespace).Resource("services").Body(s).Do(ctx).Into(out)
}

func (a *api) deleteService(ctx context.Context, name string) error {
	return a.core.Delete().Namespace(namespace).Resource("services").Name(name).Do(ctx).Error()
}

func (a *api) createSlice(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	return a.discovery.Post().Namespace(namespace).Resource("endpointslices").Body(s).Do(ctx).Error()
}

// updateSlice replaces a slice, whatever version is there.
func (a *api) updateSlice(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	return a.discovery.Put().Namespace(namespace).Resource("endpointslices").Name(s.Name).Body(s).Do(ctx).Error()
}

func (a *api) deleteSlice(ctx context.Context, name string) error {
	return a.discovery.Delete().Namespace(namespace).Resource("endpointslices").Name(name).Do(ctx).Error()
}

// addresses are the times at which a client that watches saw Services get one.
type addresses struct {
	mu    sync.Mutex
	seen  map[string]assigned
	moved chan struct{} // closed and made anew when there are more
	err   error
}

// assigned is when a Service was seen to have an address.
type assigned struct {
	addr string
	at   time.Time
}

// watchAddresses watches until ctx ends.
func (a *api) watchAddresses(ctx context.Context) (*addresses, error) {
	w, err := a.core.Get().Namespace(namespace).Resource("services").
		VersionedParams(&metav1.ListOptions{Watch: true, ResourceVersion: "0"}, metav1.ParameterCodec).
		Timeout(24 * time.Hour).Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch Services: %w", err)
	}
	t := &addresses{seen: map[string]assigned{}, moved: make(chan struct{})}
	go func() {
		for e := range w.ResultChan() {
			if s, ok := e.Object.(*corev1.Service); ok {
				t.note(s)
			}
		}
		t.end(fmt.Errorf("the watch on Services ended: %w", context.Cause(ctx)))
	}()
	return t, nil
}

func (t *addresses) note(s *corev1.Service) {
	in := s.Status.LoadBalancer.Ingress
	if len(in) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.seen[s.Name]; !ok {
		t.seen[s.Name] = assigned{in[0].IP, time.Now()}
		t.tell()
	}
}

func (t *addresses) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	t.tell()
}

func (t *addresses) tell() {
	close(t.moved)
	t.moved = make(chan struct{})
}

// of waits until a Service has an address.
func (t *addresses) of(ctx context.Context, name string) (assigned, error) {
	for {
		t.mu.Lock()
		is, ok := t.seen[name]
		moved, err := t.moved, t.err
		t.mu.Unlock()
		if ok || err != nil {
			return is, err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return is, fmt.Errorf("service %s has no address: %w", name, ctx.Err())
		}
	}
}

// forget makes a name one that was never seen.
func (t *addresses) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.seen, name)
}
