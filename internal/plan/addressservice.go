package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// An addressService is one Service of an address: its frontends, and how it is served here.
type addressService struct {
	service   cluster.Service
	fronts    []proxy.Frontend
	ports     []int // the index of each frontend in the Service's ports
	endpoints endpoints
	verdict
}

// A verdict is how a Service is served on this node.
type verdict struct {
	// code is why the Service is not announced, empty if it may be.
	code cluster.Code
	// here: this node has endpoints of some of the ports that need one on the node.
	here bool
	// message is the text of the Reason. It is empty where messageOf makes it of the endpoints.
	message string
	// elsewhere is why this node forwards ports to other nodes despite the policy Local, since their
	// endpoints are there; empty if it does not.
	elsewhere string
	// partly: some of its ports or endpoints are not forwarded; see [reduction].
	partly bool
}

func (v verdict) good() bool { return v.code == "" }

// served is the code for connections that are neither refused nor dropped.
func (v verdict) served() cluster.Code {
	switch {
	case v.partly:
		return cluster.ProxyLimited
	case v.elsewhere != "":
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

// port returns the endpoints of a frontend.
func (s addressService) port(i int) portEndpoints { return s.endpoints.ports[s.ports[i]] }

// serves reports whether some node serves a frontend.
func (s addressService) serves() bool {
	return slices.ContainsFunc(s.ports, func(i int) bool { return s.endpoints.ports[i].served() })
}

// servedGroups returns the endpoints of the frontends that are served, each group once.
func (s addressService) servedGroups() (groups []*groupEndpoints) {
	if len(s.endpoints.groups) == 1 { // as nearly always
		if g := &s.endpoints.groups[0]; s.serves() {
			return []*groupEndpoints{g}
		}
		return nil
	}
	seen := make(map[*groupEndpoints]bool, len(s.endpoints.groups))
	for _, i := range s.ports {
		if p := s.endpoints.ports[i]; p.served() && !seen[p.groupEndpoints] {
			seen[p.groupEndpoints] = true
			groups = append(groups, p.groupEndpoints)
		}
	}
	return groups
}

// assess decides whether the Service may be announced, by all of its frontends together: an address
// is announced as a whole. Frontends that no node serves do not count, if another is.
func (s addressService) assess(open bool) (is verdict) {
	switch {
	case !open:
		return verdict{code: cluster.NoSource}
	case !s.serves():
		return verdict{code: cluster.NoEndpoints}
	case !s.local():
		return verdict{}
	}
	for _, g := range s.servedGroups() {
		if g.here {
			is.here = true
		} else {
			is.code = cluster.NoLocalEndpoint
		}
	}
	return is
}
