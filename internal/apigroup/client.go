package apigroup

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Scheme returns a scheme with only the types that add adds.
func Scheme(add ...func(*runtime.Scheme) error) *runtime.Scheme {
	s, b := runtime.NewScheme(), runtime.NewSchemeBuilder(add...)
	if err := b.AddToScheme(s); err != nil {
		panic("BUG: " + err.Error())
	}
	return s
}

// Client returns a client for one API group that shares h's connections; nil: it has its own.
func Client(cfg *rest.Config, h *http.Client, scheme *runtime.Scheme,
	gv schema.GroupVersion) (*rest.RESTClient, error) {
	c := rest.CopyConfig(cfg)
	c.GroupVersion, c.APIPath = &gv, "/apis"
	if gv.Group == corev1.GroupName {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if h == nil {
		return rest.RESTClientFor(c)
	}
	return rest.RESTClientForConfigAndClient(c, h)
}
