package scale

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// notProxied is what kube-proxy leaves out (cmd/kube-proxy/app/server.go).
const notProxied = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"

// A hollowProxy has kube-proxy's informers of Services, EndpointSlices and its own Node. That of
// ServiceCIDRs is left out.
type hollowProxy struct {
	node     string
	config   *rest.Config
	services atomic.Pointer[cache.Store]
}

// run runs until ctx ends.
func (h *hollowProxy) run(ctx context.Context, _ *atomic.Bool) error {
	core, discovery, err := measure.Clients(h.config)
	if err != nil {
		return err
	}
	proxied := func(o *metav1.ListOptions) { o.LabelSelector = notProxied }
	own := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, h.node).String()
	}
	services := informer(ctx, core, "services", &corev1.Service{}, proxied)
	all := []cache.SharedInformer{services, informer(ctx, discovery, "endpointslices", &discoveryv1.EndpointSlice{}, proxied), informer(ctx, core, "nodes", &corev1.Node{}, own)}
	for _, i := range all {
		cache.WaitForCacheSync(ctx.Done(), i.HasSynced)
	}
	store := services.GetStore()
	h.services.Store(&store)
	<-ctx.Done()
	return nil
}

// informer starts an informer of a resource.
func informer(ctx context.Context, c *rest.RESTClient, resource string, of runtime.Object, narrow func(*metav1.ListOptions)) cache.SharedInformer {
	i := cache.NewSharedInformer(cache.NewFilteredListWatchFromClient(c, resource, metav1.NamespaceAll, narrow), of, 0)
	go i.RunWithContext(ctx)
	return i
}

// served is how many Services with an address kube-proxy would serve.
func (h *hollowProxy) served() (n int) {
	store := h.services.Load()
	if store == nil {
		return 0
	}
	for _, o := range (*store).List() {
		if s, ok := o.(*corev1.Service); ok && len(s.Status.LoadBalancer.Ingress) > 0 {
			n++
		}
	}
	return n
}
