package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const (
	// A new Service costs four requests: read it, claim, status, Event. At requestRate that is 250
	// Services a second, ten times as many as one user's kubectl apply, so 10,000 existing Services
	// get addresses within a minute of the start. client-go's default of five requests a second
	// would take two hours. The API server protects itself by priority and fairness; writers limits
	// the concurrent requests.
	requestRate  = 1000 // a second
	requestBurst = 2000
	// requestTimeout ends a request without a response.
	requestTimeout = 10 * time.Second
)

// scheme has only the types that are written. client-go's scheme knows all of Kubernetes: a minimal
// program that imports it grew by 10 MB.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	return s
}()

// A client sends requests to the API server, by one REST client for each API group. It caches
// nothing.
type client struct {
	core, ours, events, leases *rest.RESTClient
}

// newClient returns a client whose requests wait for limit, except those for the Lease.
func newClient(cfg *rest.Config, limit flowcontrol.RateLimiter) (*client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = requestTimeout
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.RateLimiter = limit
	// All share one HTTP client, and so one connection.
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	var c client
	c.core, err = restClient(cfg, h, corev1.SchemeGroupVersion, err)
	c.ours, err = restClient(cfg, h, v1alpha1.GroupVersion, err)
	c.events, err = restClient(cfg, h, eventsv1.SchemeGroupVersion, err)
	// A Lease whose renewal waits for other requests would be lost.
	cfg.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	c.leases, err = restClient(cfg, h, coordinationv1.SchemeGroupVersion, err)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	return &c, nil
}

// restClient returns a client for one API group that shares h's connections. It returns the
// previous client's error, so that the caller checks once.
func restClient(cfg *rest.Config, h *http.Client, gv schema.GroupVersion, err error) (*rest.RESTClient, error) {
	c := rest.CopyConfig(cfg)
	c.GroupVersion = &gv
	c.APIPath = "/apis"
	if gv.Group == corev1.GroupName {
		c.APIPath = "/api"
	}
	r, err2 := rest.RESTClientForConfigAndClient(c, h)
	return r, errors.Join(err, err2)
}

// service reads the current Service, not from a cache.
func (c *client) service(ctx context.Context, n cluster.Name) (*corev1.Service, error) {
	s := &corev1.Service{}
	return s, c.core.Get().Namespace(n.Namespace).Resource("services").Name(n.Name).Do(ctx).Into(s)
}

// namespaceGone reports whether a Namespace is now deleted or being deleted.
func (c *client) namespaceGone(ctx context.Context, name string) (bool, error) {
	ns := &corev1.Namespace{}
	err := c.core.Get().Resource("namespaces").Name(name).Do(ctx).Into(ns)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && ns.DeletionTimestamp != nil, err
}

// patchStatus changes the status of s if s still has the version that was read. It returns the
// changed Service.
func (c *client) patchStatus(ctx context.Context, s *corev1.Service, status map[string]any) (*corev1.Service, error) {
	b, err := json.Marshal(map[string]any{"metadata": atVersion(s), "status": status})
	if err != nil {
		return nil, err
	}
	out := &corev1.Service{}
	return out, c.core.Patch(types.StrategicMergePatchType).Namespace(s.Namespace).Resource("services").Name(s.Name).
		SubResource("status").Body(b).Do(ctx).Into(out)
}

// atVersion makes a patch fail with a conflict if the object has another UID or resource version by
// then.
func atVersion(o metav1.Object) map[string]any {
	return map[string]any{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()}
}

// claim reads the current AddressClaim, by the name that [v1alpha1.ClaimName] returns.
func (c *client) claim(ctx context.Context, name string) (*v1alpha1.AddressClaim, error) {
	o := &v1alpha1.AddressClaim{}
	return o, c.ours.Get().Resource("addressclaims").Name(name).Do(ctx).Into(o)
}

// createClaim fails with AlreadyExists if the address has a claim: so the API server decides
// between two controllers.
func (c *client) createClaim(ctx context.Context, o *v1alpha1.AddressClaim) error {
	return c.ours.Post().Resource("addressclaims").Body(o).Do(ctx).Error()
}

// setHolders changes the holders and reservations of a claim if it still has the version that was
// read.
func (c *client) setHolders(ctx context.Context, o *cluster.Claim, holders []v1alpha1.ClaimHolder, kept []v1alpha1.ClaimReservation) error {
	return c.patchClaim(ctx, o, map[string]any{"holders": holders, "reservedFor": kept, "services": holdersText(holders, kept)})
}

// patchClaim changes the given fields of a claim's spec if it still has the version that was read.
func (c *client) patchClaim(ctx context.Context, o *cluster.Claim, spec map[string]any) error {
	b, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion},
		"spec":     spec,
	})
	if err != nil {
		return err
	}
	return c.ours.Patch(types.MergePatchType).Resource("addressclaims").Name(o.Name()).Body(b).Do(ctx).Error()
}

// setAnnounce changes spec.announce of a claim if it still has the version that was read.
func (c *client) setAnnounce(ctx context.Context, o *cluster.Claim, announce cluster.Announce) error {
	return c.patchClaim(ctx, o, map[string]any{"announce": announce})
}

// setNode changes the node that a claim names if it still has the version that was read.
func (c *client) setNode(ctx context.Context, o *cluster.Claim, node string) error {
	return c.patchClaim(ctx, o, map[string]any{"node": node})
}

// deleteClaim deletes a claim if it still has the version that was read.
func (c *client) deleteClaim(ctx context.Context, o *cluster.Claim) error {
	return c.ours.Delete().Resource("addressclaims").Name(o.Name()).Body(&metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion},
	}).Do(ctx).Error()
}

// createEvent fails with AlreadyExists if an earlier attempt succeeded and its answer was lost.
func (c *client) createEvent(ctx context.Context, e *eventsv1.Event) error {
	return c.events.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
}

// createSecret fails with AlreadyExists if another controller was first.
func (c *client) createSecret(ctx context.Context, s *corev1.Secret) error {
	return c.core.Post().Namespace(s.Namespace).Resource("secrets").Body(s).Do(ctx).Error()
}

// pool reads the current AddressPool.
func (c *client) pool(ctx context.Context, name string) (*v1alpha1.AddressPool, error) {
	o := &v1alpha1.AddressPool{}
	return o, c.ours.Get().Resource("addresspools").Name(name).Do(ctx).Into(o)
}

// patchPool sets the status of a pool. No other program writes it, so it needs no version. It
// removes a family that the pool no longer has.
func (c *client) patchPool(ctx context.Context, name string, s v1alpha1.AddressPoolStatus) error {
	b, err := json.Marshal(map[string]any{"status": map[string]any{
		"ipv4": s.IPv4, "ipv6": s.IPv6, "namespaces": s.Namespaces, "otherNamespaces": s.OtherNamespaces, "conditions": s.Conditions,
	}})
	if err != nil {
		return err
	}
	return c.ours.Patch(types.MergePatchType).Resource("addresspools").Name(name).SubResource("status").Body(b).Do(ctx).Error()
}

// advertisementStatus reads the status of an advertisement of either kind.
func (c *client) advertisementStatus(ctx context.Context, v cluster.Version) (v1alpha1.AdvertisementStatus, error) {
	get := func(o runtime.Object) error {
		return c.ours.Get().Resource(advertisementResource(v)).Name(v.Name).Do(ctx).Into(o)
	}
	if v.Kind == "BGPAdvertisement" {
		var o v1alpha1.BGPAdvertisement
		err := get(&o)
		return o.Status, err
	}
	var o v1alpha1.L2Advertisement
	err := get(&o)
	return o.Status, err
}

// advertisementResource is the resource of an advertisement's kind, as in URLs.
func advertisementResource(v cluster.Version) string {
	if v.Kind == "BGPAdvertisement" {
		return "bgpadvertisements"
	}
	return "l2advertisements"
}

// patchAdvertisement sets the status. No other program writes it, so it needs no version.
func (c *client) patchAdvertisement(ctx context.Context, v cluster.Version, s v1alpha1.AdvertisementStatus) error {
	b, err := json.Marshal(map[string]any{"status": s})
	if err != nil {
		return err
	}
	return c.ours.Patch(types.MergePatchType).Resource(advertisementResource(v)).Name(v.Name).SubResource("status").Body(b).Do(ctx).Error()
}
