package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/apigroup"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// An object is any object of Kubernetes.
type object interface {
	runtime.Object
	metav1.Object
}

// A resource is the API server's name for the objects of one kind.
type resource struct {
	schema.GroupVersionResource
	// one is the name of the only object to watch, empty for all.
	one string
	// labels is a label selector, empty for all.
	labels string
	// namespace is the only one to watch, empty for all.
	namespace string
	// fields is a field selector besides one, empty for all.
	fields string
	// optional: a speaker must also start without it, as where the CRD or the role is of an earlier
	// version.
	optional bool
	// recent: an API server that does not know the resource is only older, which is no Problem.
	recent bool
}

// The resources that an API can watch. A resource is optional if a speaker of this version must also start
// where CRDs and roles are of an earlier version.
var (
	services = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services")}
	// A headless Service has no address, and Services with much churn are often headless.
	endpointSlices = resource{
		GroupVersionResource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		labels:               "!" + corev1.IsHeadlessService,
	}
	nodes      = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes")}
	namespaces = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("namespaces"), optional: true}
	// Kubernetes has them since 1.33.
	serviceCIDRs = resource{
		GroupVersionResource: networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
		optional:             true,
		recent:               true,
	}
	pools          = resource{GroupVersionResource: v1alpha1.GroupVersion.WithResource("addresspools")}
	peers          = resource{GroupVersionResource: v1alpha1.GroupVersion.WithResource("bgppeers")}
	advertisements = resource{
		GroupVersionResource: v1alpha1.GroupVersion.WithResource("bgpadvertisements"),
		optional:             true,
	}
	l2Advertisements = resource{
		GroupVersionResource: v1alpha1.GroupVersion.WithResource("l2advertisements"),
		optional:             true,
	}
	speakers = resource{
		GroupVersionResource: v1alpha1.GroupVersion.WithResource("speakerstatuses"),
		optional:             true,
	}
	claims = resource{GroupVersionResource: v1alpha1.GroupVersion.WithResource("addressclaims")}
)

// ours reports whether a CRD of this repository defines the resource.
func (r resource) ours() bool { return r.Group == v1alpha1.GroupVersion.Group }

// String is the name that the API server uses in its messages, such as bgppeers.fanfare.io.
func (r resource) String() string { return r.GroupResource().String() }

// client uses protobuf for the API server's built-in resources: it takes a third of the bytes and
// of the decoding time. Resources of a CRD have only JSON.
func (r resource) client(cfg *rest.Config, h *http.Client) (*rest.RESTClient, error) {
	c := rest.CopyConfig(cfg)
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	if r.ours() {
		c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	}
	return apigroup.Client(c, h, scheme, r.GroupVersion())
}

// narrow restricts a request to the wanted objects.
func (r resource) narrow(o *metav1.ListOptions) {
	o.FieldSelector = r.fields
	if r.one != "" {
		o.FieldSelector = strings.Trim("metadata.name="+r.one+","+r.fields, ",")
	}
	o.LabelSelector = r.labels
}

// A store keeps an API's Builder up to date with one resource. client-go's Reflector fills it.
// Unlike an informer's store it keeps only the names of the objects: the Builder has their
// contents.
type store[T object] struct {
	api    *API
	ctx    context.Context // of the watch
	count  counters
	synced func() // called once the whole resource was read
	kind   string // of the objects in known; empty before the first
	known  map[cluster.Name]struct{}
}

// backoff is the pause between attempts. client-go's default pauses for up to a minute, and by then
// an API server that is back has a minute's worth of changes.
var backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 5 * time.Second}

// start watches r until ctx ends. OpenAPI waits until r was read.
func start[T object](ctx context.Context, a *API, r resource) (err error) {
	a.synced[r], err = watchResource[T](ctx, a, r)
	return err
}

// watchResource watches r until ctx ends. The channel is closed after the first complete read.
func watchResource[T object](ctx context.Context, a *API, r resource) (<-chan struct{}, error) {
	client, err := r.client(a.config, a.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", r, err)
	}
	synced := make(chan struct{})
	w := &store[T]{api: a, ctx: ctx, count: a.metrics.of(r), known: map[cluster.Name]struct{}{}}
	w.synced = sync.OnceFunc(func() { close(synced) })
	absent := func() {}
	if r.optional {
		absent = sync.OnceFunc(w.assume)
	}
	source := &listWatch{
		ListWatch: cache.NewFilteredListWatchFromClient(client, r.Resource, r.namespace, r.narrow),
		api:       a,
		resource:  r,
		absent:    absent,
	}
	var zero T
	pause := backoff
	reflector := cache.NewReflectorWithOptions(source, zero, w,
		cache.ReflectorOptions{Name: r.String(), Backoff: &pause})
	// client-go treats the end of an HTTP/2 connection as an error of the server, and would list.
	reflector.MaxInternalErrorRetryDuration = maxResume
	go reflector.RunWithContext(ctx)
	return synced, nil
}

// Add is called for an object that is new, or existed when the watch began.
func (s *store[T]) Add(obj any) error { return s.Update(obj) }

// Update is called for an object that has changed.
func (s *store[T]) Update(obj any) error {
	s.count.events.Inc()
	s.change(func(b *cluster.Builder) { s.set(b, obj) })
	return nil
}

// Delete is called with the last version of a deleted object.
func (s *store[T]) Delete(obj any) error {
	s.count.events.Inc()
	s.change(func(b *cluster.Builder) {
		if key, ok := cluster.KeyOf(obj.(T)); ok {
			delete(s.known, key.Name)
			b.Delete(key)
		}
	})
	return nil
}

// Replace is called with all existing objects after a list. They take effect as one change: after
// an outage no reader sees a part of the changes. Objects that are not in the list are deleted: the
// API server deleted them while they were not watched.
func (s *store[T]) Replace(objs []any, _ string) error {
	s.count.lists.Inc()
	s.change(func(b *cluster.Builder) {
		gone := s.known
		s.known = make(map[cluster.Name]struct{}, len(objs))
		for _, obj := range objs {
			delete(gone, s.set(b, obj))
		}
		// Delete last, so that an endpoint that has moved to another slice does not disappear in
		// between.
		for name := range gone {
			b.Delete(cluster.Key{Kind: s.kind, Name: name})
		}
	})
	s.synced()
	return nil
}

// change makes f write to the Builder, unless the watch has ended.
func (s *store[T]) change(f func(*cluster.Builder)) {
	s.api.change(func(b *cluster.Builder) {
		if s.ctx.Err() == nil {
			f(b)
		}
	})
}

// set passes an object to the Builder, and returns its name.
func (s *store[T]) set(b *cluster.Builder, obj any) cluster.Name {
	o := obj.(T) // the Reflector passes on no other types
	key, ok := cluster.KeyOf(o)
	if !ok {
		panic(fmt.Sprintf("BUG: a watch on %T, which Set does not take", o))
	}
	s.kind, s.known[key.Name] = key.Kind, struct{}{}
	b.Set(o, "")
	return key.Name
}

// assume makes the Builder use an earlier process's knowledge if, from the start, the API server
// lacks the resource or does not let this process read it.
func (s *store[T]) assume() {
	s.change(func(b *cluster.Builder) {
		for _, obj := range b.Known() {
			if o, ok := obj.(T); ok {
				s.set(b, o)
			}
		}
	})
	s.synced()
}

// Resync is for stores that need all objects again.
func (s *store[T]) Resync() error { return nil }

// Transformer drops unread fields from objects that the Reflector keeps until its list is complete.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(T); ok {
			cluster.Trim(o)
		}
		return obj, nil
	}
}

// A listWatch lists and watches one resource, and reports the results to health.go.
type listWatch struct {
	*cache.ListWatch
	api      *API
	resource resource
	absent   func()    // called if the resource does not exist, or may not be read
	failing  time.Time // since when no watch could be opened; zero: the last one could
}

// ListWithContext is called by the Reflector.
func (l *listWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := l.ListWatch.ListWithContext(ctx, o)
	f := faultOf(err)
	if f == missing && l.resource.recent {
		l.api.record(ctx, l.resource, nil) // an answer; it also ends an outage
	} else {
		l.api.record(ctx, l.resource, err)
	}
	// Last, so that a caller that waits for this resource finds in the snapshot why it is empty.
	if f == missing || f == forbidden {
		l.absent()
	}
	return list, err
}

// WatchWithContext is called by the Reflector.
func (l *listWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	if o.SendInitialEvents != nil {
		return l.stream(ctx, o)
	}
	return l.resume(ctx, o)
}

// stream opens a list that comes as a watch (KEP-3157). If the API server refuses that, an ordinary
// list follows at once, and only its result matters.
func (l *listWatch) stream(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := l.open(ctx, o)
	var refused apierrors.APIStatus
	if !errors.As(err, &refused) {
		l.api.record(ctx, l.resource, err)
	}
	return w, err
}

// open opens a watch. It turns a timeout into an error, instead of a watch without events.
func (l *listWatch) open(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := l.ListWatch.WatchWithContext(ctx, o)
	if err == nil && reflect.TypeOf(w) == emptyWatch {
		return nil, errors.New("no answer in time")
	}
	return w, err
}

// emptyWatch is client-go's result of a timeout, instead of an error.
var emptyWatch = reflect.TypeOf(apiwatch.NewEmptyWatch())
