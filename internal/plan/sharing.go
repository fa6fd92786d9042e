package plan

import (
	"fmt"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// forwardElsewhere returns the frontends of an address. It changes them if the policy Local of its
// ports, of one Service or of several that share it, has no node in common. Nodes that can serve
// one of these ports then announce the address and forward the others to other nodes, masqueraded:
// without the client's address rather than not at all. If some node can serve all, only such
// nodes announce; but an owner over Layer 2 is the only node that does, so it forwards.
func forwardElsewhere(shares []addressService, owner bool) (fronts []proxy.Frontend) {
	why, must := mustForward(shares, owner)
	for i := range shares {
		s := &shares[i]
		if must && s.code == cluster.NoLocalEndpoint {
			s.forwardRemote()
			s.verdict = verdict{elsewhere: why}
		}
		fronts = append(fronts, s.fronts...)
	}
	return fronts
}

// forwardRemote forwards the ports without endpoints on this node to other nodes.
func (s *addressService) forwardRemote() {
	for i := range s.fronts {
		if f, p := &s.fronts[i], s.port(i); p.served() && !p.here {
			f.External = proxy.Target{Backends: f.Internal.Backends, Remote: proxy.Masquerade}
		}
	}
}

// mustForward decides whether this node forwards ports of an address to other nodes, and why.
func mustForward(shares []addressService, owner bool) (why string, must bool) {
	// If no port needs another node, or this node has none of the endpoints and is not the owner,
	// other nodes announce the address.
	remote := slices.ContainsFunc(shares, func(s addressService) bool { return s.code == cluster.NoLocalEndpoint })
	local := slices.ContainsFunc(shares, func(s addressService) bool { return s.needsEndpoint() && s.here })
	if !remote || !local && !owner {
		return "", false
	}
	switch complete, names := completeNodes(shares), needingEndpoint(shares); {
	case len(complete) == 0 && len(names) == 1:
		return "no node has endpoints of all its ports", true
	case len(complete) == 0:
		return fmt.Sprintf("no node has endpoints of all of %s, which share the address", cluster.Enumerate(names)),
			true
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

// completeNodes returns the nodes that can serve all ports that need an endpoint on the node.
func completeNodes(shares []addressService) (nodes []string) {
	first := true
	for _, s := range shares {
		if !s.needsEndpoint() {
			continue
		}
		for _, g := range s.servedGroups() {
			has := g.nodes()
			if first {
				nodes, first = has, false
				continue
			}
			nodes = slices.DeleteFunc(nodes, func(n string) bool {
				_, both := slices.BinarySearch(has, n)
				return !both
			})
		}
	}
	return nodes
}
