package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// namespace is the namespace of all Services.
const namespace = "shop"

// An api writes Services and EndpointSlices in protobuf, because its CPU time is taken from
// the measured programs.
type api struct{ core, discovery *rest.RESTClient }

func newAPI(cfg *rest.Config) (*api, error) {
	core, discovery, err := measure.Clients(cfg)
	return &api{core, discovery}, err
}

// createService returns the Service as the API server created it.
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

// updateSlice replaces a slice without a check of its version.
func (a *api) updateSlice(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	return a.discovery.Put().Namespace(namespace).Resource("endpointslices").Name(s.Name).Body(s).Do(ctx).Error()
}

func (a *api) deleteSlice(ctx context.Context, name string) error {
	return a.discovery.Delete().Namespace(namespace).Resource("endpointslices").Name(name).Do(ctx).Error()
}
