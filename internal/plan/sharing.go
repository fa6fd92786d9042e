package plan

import (
	"fmt"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// forwardElsewhere returns the frontends of an address that Services share. It changes them if
// the policy Local of several Services has no node in common. Nodes that can serve one of
// these Services then announce the address and forward the others to other nodes, masqueraded:
// without the client's address rather than not at all. If some node can serve all, only such
// nodes announce; but an owner over Layer 2 is the only node that does, so it forwards.
func forwardElsewhere(shares []addressService, owner bool) (fronts []proxy.Frontend) {
	if why, must := mustForward(shares, owner); must {
		for i := range shares {
			s := &shares[i]
			if s.code != cluster.NoLocalEndpoint {
				continue
			}
			for j := range s.fronts {
				f := &s.fronts[j]
				f.External = proxy.Target{Backends: f.Internal.Backends, Remote: proxy.Masquerade}
			}
			s.verdict = verdict{elsewhere: true, message: "forwarded to other nodes, which do not see the client's address, although externalTrafficPolicy is Local: " + why}
		}
	}
	for _, s := range shares {
		fronts = append(fronts, s.fronts...)
	}
	return fronts
}

// mustForward decides whether this node forwards Services of an address to other nodes, and why.
func mustForward(shares []addressService, owner bool) (why string, must bool) {
	// If no Service needs another node, or this node has none of the endpoints and is not the
	// owner, other nodes announce the address.
	remote := slices.ContainsFunc(shares, func(s addressService) bool { return s.code == cluster.NoLocalEndpoint })
	local := slices.ContainsFunc(shares, func(s addressService) bool { return s.good() && s.local() })
	if !remote || !local && !owner {
		return "", false
	}
	switch complete := completeNodes(shares); {
	case len(complete) == 0:
		return fmt.Sprintf("no node has endpoints of all of %s, which share the address", cluster.Enumerate(needingEndpoint(shares))), true
	case owner:
		return "this node answers for the address, and not " + cluster.Enumerate(complete), true
	}
	return "", false
}

// needingEndpoint returns the names of the Services that need an endpoint on the node.
func needingEndpoint(shares []addressService) (names []string) {
	for _, s := range shares {
		if s.needsEndpoint() {
			names = append(names, s.service.Name.String())
		}
	}
	return names
}

// completeNodes returns the nodes that can serve all Services that need an endpoint.
func completeNodes(shares []addressService) (nodes []string) {
	first := true
	for _, s := range shares {
		if !s.needsEndpoint() {
			continue
		}
		has := s.nodes()
		if first {
			nodes, first = has, false
			continue
		}
		nodes = slices.DeleteFunc(nodes, func(n string) bool { return !slices.Contains(has, n) })
	}
	return nodes
}

// nodes returns the nodes with endpoints of the Service that get new connections.
func (s addressService) nodes() (nodes []string) {
	for _, e := range s.endpoints.join(func(p portEndpoints) []cluster.Endpoint { return p.usable }) {
		if e.Node != "" && !slices.Contains(nodes, e.Node) {
			nodes = append(nodes, e.Node)
		}
	}
	return nodes
}
