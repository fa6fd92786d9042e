package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/apigroup"
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

// scheme has only the types that are written.
var scheme = apigroup.Scheme(corev1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme, v1alpha1.AddToScheme)

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
	cfg.RateLimiter = limit
	// All share one HTTP client, and so one connection.
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	of := func(gv schema.GroupVersion) *rest.RESTClient {
		r, failed := apigroup.Client(cfg, h, scheme, gv)
		err = errors.Join(err, failed)
		return r
	}
	c := &client{
		core: of(corev1.SchemeGroupVersion), ours: of(v1alpha1.GroupVersion), events: of(eventsv1.SchemeGroupVersion),
	}
	// A Lease whose renewal waits for other requests would be lost.
	cfg.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	if c.leases = of(coordinationv1.SchemeGroupVersion); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	return c, nil
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
	out := &corev1.Service{}
	return out, c.core.Patch(types.StrategicMergePatchType).Namespace(s.Namespace).Resource("services").Name(s.Name).
		SubResource("status").
		Body(body(map[string]any{"metadata": atVersion(s.UID, s.ResourceVersion), "status": status})).Do(ctx).Into(out)
}

// body returns a patch as JSON.
func body(patch map[string]any) []byte {
	b, err := json.Marshal(patch)
	if err != nil {
		panic("BUG: " + err.Error()) // all values are texts, numbers and API objects
	}
	return b
}

// atVersion makes a patch fail with a conflict if the object has another UID or resource version by
// then.
func atVersion(uid types.UID, version string) map[string]any {
	return map[string]any{"uid": uid, "resourceVersion": version}
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
func (c *client) setHolders(ctx context.Context, o *cluster.Claim, holders []v1alpha1.ClaimHolder,
	kept []v1alpha1.ClaimReservation) error {
	return c.patchClaim(ctx, o, map[string]any{
		"holders": holders, "reservedFor": kept, "services": holdersText(holders, kept),
	})
}

// patchClaim changes the given fields of a claim's spec if it still has the version that was read.
func (c *client) patchClaim(ctx context.Context, o *cluster.Claim, spec map[string]any) error {
	return c.ours.Patch(types.MergePatchType).Resource("addressclaims").Name(o.Name()).
		Body(body(map[string]any{"metadata": atVersion(o.UID, o.ResourceVersion), "spec": spec})).Do(ctx).Error()
}

// deleteClaim deletes a claim if it still has the version that was read.
func (c *client) deleteClaim(ctx context.Context, o *cluster.Claim) error {
	return c.ours.Delete().Resource("addressclaims").Name(o.Name()).Body(&metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion},
	}).Do(ctx).Error()
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

// patchPool sets the status of a pool. It removes a family that the pool no longer has.
func (c *client) patchPool(ctx context.Context, name string, s v1alpha1.AddressPoolStatus) error {
	return c.setStatus(ctx, "addresspools", name, map[string]any{
		"ipv4": s.IPv4, "ipv6": s.IPv6, "namespaces": s.Namespaces, "otherNamespaces": s.OtherNamespaces,
		"conditions": s.Conditions,
	})
}

// setStatus needs no version, because no other program writes these statuses.
func (c *client) setStatus(ctx context.Context, resource, name string, status any) error {
	return c.ours.Patch(types.MergePatchType).Resource(resource).Name(name).SubResource("status").
		Body(body(map[string]any{"status": status})).Do(ctx).Error()
}

// advertisementStatus reads the status of an advertisement of either kind.
func (c *client) advertisementStatus(ctx context.Context, v cluster.Version) (v1alpha1.AdvertisementStatus, error) {
	var o struct{ Status v1alpha1.AdvertisementStatus }
	text, err := c.ours.Get().Resource(advertisementResource(v)).Name(v.Name).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	return o.Status, err
}

// advertisementResource is the resource of an advertisement's kind, as in URLs.
func advertisementResource(v cluster.Version) string { return strings.ToLower(v.Kind) + "s" }
