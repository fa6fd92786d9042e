package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// An object is any object of Kubernetes.
type object interface {
	runtime.Object
	metav1.Object
}

// A resource is what the API server calls the objects of one kind.
type resource struct {
	schema.GroupVersionResource
	// one is the name of the only object that is wanted, empty for all.
	one string
	// labels is a label selector, empty for all.
	labels string
	// namespace is the only one to watch, empty for all.
	namespace string
	// typ is the only type to watch of Secrets, empty for all.
	typ corev1.SecretType
	// optional: without it everything is as before there was any. A speaker of
	// today starts where the CRD or the role is yesterday's.
	optional bool
	// recent: an API server that does not know the resource is only older,
	// which is no Problem.
	recent bool
}

// The resources that an API can watch. A resource is optional if a speaker of this version must also start
// where CRDs and roles are of an earlier version.
var (
	services = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services")}
	// A headless Service has no address, and those with much churn are headless.
	endpointSlices = resource{
		GroupVersionResource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		labels:               "!" + corev1.IsHeadlessService,
	}
	nodes      = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes")}
	namespaces = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("namespaces"), optional: true}
	// Kubernetes has them as of 1.33.
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

// client uses protobuf for the API server's built-in resources: it takes a third of the bytes and of
// the time to decode. Resources of a CRD have JSON only.
func (r resource) client(cfg *rest.Config, h *http.Client) (*rest.RESTClient, error) {
	c := rest.CopyConfig(cfg)
	gv := r.GroupVersion()
	c.GroupVersion = &gv
	c.APIPath = "/apis"
	if gv.Group == corev1.GroupName {
		c.APIPath = "/api"
	}
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	if r.ours() {
		c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientForConfigAndClient(c, h)
}

// narrow has the API server leave out what is not wanted.
func (r resource) narrow(o *metav1.ListOptions) {
	var wanted []fields.Selector
	if r.one != "" {
		wanted = append(wanted, fields.OneTermEqualSelector(metav1.ObjectNameField, r.one))
	}
	if r.typ != "" {
		wanted = append(wanted, fields.OneTermEqualSelector("type", string(r.typ)))
	}
	if len(wanted) > 0 {
		o.FieldSelector = fields.AndSelectors(wanted...).String()
	}
	o.LabelSelector = r.labels
}

// A store keeps an API's Builder up to date with one resource. It is the store
// that client-go's Reflector fills. Unlike an informer's store it keeps only the names of the
// objects: the Builder has their contents.
type store[T object] struct {
	api    *API
	ctx    context.Context // of the watch
	count  counters
	synced func() // called when the whole resource was read
	kind   string // of the objects in known; empty before the first
	known  map[cluster.Name]struct{}
}

// backoff is between attempts. client-go's own waits for up to a minute, and an
// API server that is back has news of a minute by then.
var backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 5 * time.Second}

// start watches r until ctx ends. OpenAPI waits until r was read.
func start[T object](ctx context.Context, a *API, r resource) (err error) {
	a.synced[r], err = watchResource[T](ctx, a, r)
	return err
}

// watchResource watches r until ctx ends. The channel is closed when r was read for the first time.
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
	reflector := cache.NewReflectorWithOptions(source, zero, w, cache.ReflectorOptions{Name: r.String(), Backoff: &pause})
	// client-go takes the end of an HTTP/2 connection for an error of the server, and would list.
	reflector.MaxInternalErrorRetryDuration = maxResume
	go reflector.RunWithContext(ctx)
	return synced, nil
}

// Add is called for an object that is new, or was when the watch began.
func (w *store[T]) Add(obj any) error { return w.Update(obj) }

// Update is called for an object that has changed.
func (w *store[T]) Update(obj any) error {
	w.count.events.Inc()
	w.change(func(b *cluster.Builder) { w.set(b, obj) })
	return nil
}

// Delete is called with the last version of an object that is gone.
func (w *store[T]) Delete(obj any) error {
	w.count.events.Inc()
	w.change(func(b *cluster.Builder) {
		if key, ok := cluster.KeyOf(obj.(T)); ok {
			delete(w.known, key.Name)
			b.Delete(key)
		}
	})
	return nil
}

// Replace is called with all objects that there are, after a list. They take effect as one
// change: after an outage no reader sees half of the changes. Objects that are not in the list are
// deleted: the API server deleted them while it was not watched.
func (w *store[T]) Replace(objs []any, _ string) error {
	w.count.lists.Inc()
	w.change(func(b *cluster.Builder) {
		gone := w.known
		w.known = make(map[cluster.Name]struct{}, len(objs))
		for _, obj := range objs {
			delete(gone, w.set(b, obj))
		}
		// Last, so that an endpoint that has moved to another slice stays one.
		for name := range gone {
			b.Delete(cluster.Key{Kind: w.kind, Name: name})
		}
	})
	w.synced()
	return nil
}

// change has f write to the Builder, unless the watch has ended.
func (w *store[T]) change(f func(*cluster.Builder)) {
	w.api.change(func(b *cluster.Builder) {
		if w.ctx.Err() == nil {
			f(b)
		}
	})
}

// set hands an object to the Builder, and returns its name.
func (w *store[T]) set(b *cluster.Builder, obj any) cluster.Name {
	o := obj.(T) // The Reflector lets nothing else through.
	key, ok := cluster.KeyOf(o)
	if !ok {
		panic(fmt.Sprintf("BUG: a watch on %T, which Set does not take", o))
	}
	w.kind, w.known[key.Name] = key.Kind, struct{}{}
	b.Set(o, "")
	return key.Name
}

// assume has the Builder use what an earlier process knew, when the API server does not
// have the resource, or does not let us read it, from the start.
func (w *store[T]) assume() {
	w.change(func(b *cluster.Builder) {
		for _, obj := range b.Known() {
			if o, ok := obj.(T); ok {
				w.set(b, o)
			}
		}
	})
	w.synced()
}

// Resync is for stores that want all objects again.
func (w *store[T]) Resync() error { return nil }

// Transformer drops unread fields from objects that the Reflector has to
// keep until it has got all of them.
func (w *store[T]) Transformer() cache.TransformFunc {
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
	absent   func()    // called when the resource does not exist for us
	failing  time.Time // when a watch could not be opened for the first time; zero: it could
}

// ListWithContext is called by the Reflector.
func (l *listWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := l.ListWatch.ListWithContext(ctx, o)
	f := faultOf(err)
	if f != missing || !l.resource.recent {
		l.api.record(ctx, l.resource, err)
	}
	// Last: a caller that waits for this resource finds in the snapshot why it is empty.
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

// stream is a list that comes as a watch (KEP-3157). Where the API server refuses
// that, an ordinary list follows at once: only what becomes of that matters.
func (l *listWatch) stream(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := l.open(ctx, o)
	var refused apierrors.APIStatus
	if !errors.As(err, &refused) {
		l.api.record(ctx, l.resource, err)
	}
	return w, err
}

// open opens a watch. A timeout is an error here, and not a watch without events.
func (l *listWatch) open(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := l.ListWatch.WatchWithContext(ctx, o)
	if err == nil && reflect.TypeOf(w) == emptyWatch {
		return nil, errors.New("no answer in time")
	}
	return w, err
}

// emptyWatch is what client-go makes of a timeout, in place of an error.
var emptyWatch = reflect.TypeOf(apiwatch.NewEmptyWatch())
