package plan

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// An addressService is one Service of an address: its frontends, and how it is served here.
type addressService struct {
	service   cluster.Service
	fronts    []proxy.Frontend
	endpoints endpoints
	verdict
}

// A verdict is how a Service is served on this node.
type verdict struct {
	// code is why the Service is not announced, empty if it may be.
	code cluster.Code
	// message is the text of the Reason. It is empty where messageOf makes it of the endpoints.
	message string
	// elsewhere: its endpoints are on other nodes, and this node forwards to them despite the
	// policy Local.
	elsewhere bool
}

func (v verdict) good() bool { return v.code == "" }

// served is the code for connections that are neither refused nor dropped.
func (v verdict) served() cluster.Code {
	if v.elsewhere {
		return cluster.Elsewhere
	}
	return cluster.Programmed
}

// refused is the verdict on a Service that the proxy cannot hold.
func refused(why string) verdict { return verdict{code: cluster.ProxyRefused, message: why} }

// local reports whether the Service needs endpoints on the node.
func (s addressService) local() bool {
	return s.service.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// needsEndpoint reports whether the Service needs a node with endpoints, and there is one.
func (s addressService) needsEndpoint() bool {
	return s.local() && (s.good() || s.code == cluster.NoLocalEndpoint)
}
