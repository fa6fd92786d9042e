package measure

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Clients returns clients for Services and for EndpointSlices.
func Clients(cfg *rest.Config) (core, discovery *rest.RESTClient, err error) {
	if core, err = Client(cfg, corev1.SchemeGroupVersion, corev1.AddToScheme); err != nil {
		return nil, nil, err
	}
	discovery, err = Client(cfg, discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme)
	return core, discovery, err
}

// Client returns a client for the objects of a group. It uses protobuf, because its CPU time is taken from the
// measured programs.
func Client(cfg *rest.Config, gv schema.GroupVersion, add func(*runtime.Scheme) error) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	c := rest.CopyConfig(cfg)
	c.GroupVersion, c.NegotiatedSerializer = &gv, serializer.NewCodecFactory(scheme).WithoutConversion()
	c.APIPath = "/apis"
	if gv.Group == corev1.GroupName {
		c.APIPath = "/api"
	}
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	return rest.RESTClientFor(c)
}
