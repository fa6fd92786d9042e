package scale

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A hollowProxy has kube-proxy's informers, with their selectors (v1.37, cmd/kube-proxy/app/server.go), and
// its Event of the start. kubemark's hollow proxy ends only with its process, and a machine bears few of
// these.
type hollowProxy struct {
	node      string
	config    *rest.Config
	traffic   *traffic
	addresses addresses
	last      atomic.Pointer[discoveryv1.EndpointSlice] // that it received
}

// An addresses counts the Services of an informer that have an address.
type addresses struct{ count atomic.Int64 }

// run runs until ctx ends.
func (h *hollowProxy) run(ctx context.Context, _ *atomic.Bool) error {
	ctx = klog.NewContext(ctx, logr.Discard()) // What fails while the API server restarts is expected.
	config, err := h.traffic.wrap(h.config)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(config.Transport)
	core, discovery, err := measure.Clients(config)
	networking, err2 := measure.Client(config, networkingv1.SchemeGroupVersion, networkingv1.AddToScheme)
	events, err3 := measure.Client(config, eventsv1.SchemeGroupVersion, eventsv1.AddToScheme)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	services := informer(core, "services", &corev1.Service{}, func(o *metav1.ListOptions) {
		o.LabelSelector = "!service.kubernetes.io/service-proxy-name"
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	})
	if err := h.addresses.of(services); err != nil {
		return err
	}
	slices := informer(discovery, "endpointslices", &discoveryv1.EndpointSlice{},
		func(o *metav1.ListOptions) { o.LabelSelector = "!" + corev1.IsHeadlessService })
	if err := h.record(slices); err != nil {
		return err
	}
	for _, i := range []cache.SharedInformer{
		services,
		slices,
		informer(networking, "servicecidrs", &networkingv1.ServiceCIDR{}, all),
		informer(core, "nodes", &corev1.Node{}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, h.node).String()
		}),
	} {
		go i.RunWithContext(ctx)
	}
	if err := h.started(ctx, events); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// started creates the Event by which kube-proxy reports its start.
func (h *hollowProxy) started(ctx context.Context, events *rest.RESTClient) error {
	return events.Post().Namespace(metav1.NamespaceDefault).Resource("events").Body(&eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: h.node + "-"}, EventTime: metav1.NowMicro(),
		Type: corev1.EventTypeNormal, Reason: "Starting", Action: "StartKubeProxy", ReportingController: "kube-proxy",
		ReportingInstance: "kube-proxy-" + h.node,
		Regarding:         corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: h.node},
	}).Do(ctx).Error()
}

// informer returns an informer of a resource that does not run yet.
func informer(c *rest.RESTClient, resource string, of runtime.Object,
	narrow func(*metav1.ListOptions)) cache.SharedInformer {
	return cache.NewSharedInformer(cache.NewFilteredListWatchFromClient(c, resource, metav1.NamespaceAll, narrow), of,
		0)
}

func all(*metav1.ListOptions) {}

// of counts the Services of an informer that does not run yet.
func (a *addresses) of(i cache.SharedInformer) error {
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.count.Add(address(o)) },
		UpdateFunc: func(was, is any) { a.count.Add(address(is) - address(was)) },
	})
	if err != nil {
		return fmt.Errorf("informer of Services: %w", err)
	}
	return nil
}

// address is 1 for a Service that has one.
func address(o any) int64 {
	if s, ok := o.(*corev1.Service); ok && len(s.Status.LoadBalancer.Ingress) > 0 {
		return 1
	}
	return 0
}

// record keeps the last slice of an informer that does not run yet.
func (h *hollowProxy) record(slices cache.SharedInformer) error {
	keep := func(o any) {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			h.last.Store(s)
		}
	}
	_, err := slices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: keep, UpdateFunc: func(_, is any) { keep(is) },
	})
	if err != nil {
		return fmt.Errorf("informer of EndpointSlices: %w", err)
	}
	return nil
}

// served is how many Services with an address kube-proxy would serve.
func (h *hollowProxy) served() int { return int(h.addresses.count.Load()) }

func (h *hollowProxy) received(s *discoveryv1.EndpointSlice) bool {
	last := h.last.Load()
	return last != nil && last.Name == s.Name && reflect.DeepEqual(last.Endpoints, s.Endpoints)
}
