package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// portEndpoints are the endpoints of one port.
type portEndpoints struct {
	*groupEndpoints // nil: it has none, ready or not
	cluster.GroupPort
}

// groupEndpoints are the endpoints of the ports that have the same ones, in lists sorted by address.
type groupEndpoints struct {
	all []cluster.Endpoint
	// usable may get new flows: the ready endpoints or, without
	// any, terminating endpoints that still serve (KEP-1669).
	usable []cluster.Endpoint
	// preferred are the usable endpoints for this node by topology hints; all without valid
	// hints.
	preferred []cluster.Endpoint
	// local are the usable endpoints on this node, by the same rule: a terminating pod serves
	// clients that still arrive here, even if other nodes have ready ones. Only with
	// externalTrafficPolicy Local.
	local []cluster.Endpoint
	// draining are in neither list: they terminate, are not ready, are for other nodes, or are
	// on an unresponsive node. They get no new flows and keep existing ones.
	draining []cluster.Endpoint
	// here: some usable endpoint is on this node.
	here bool
	// hintsText says how topology hints were applied, empty without hints.
	hintsText string
	// unresponsiveText names unresponsive nodes with endpoints, empty if there are none.
	unresponsiveText string
}

// served reports whether any node serves the port.
func (p portEndpoints) served() bool { return p.groupEndpoints != nil && len(p.usable) > 0 }

// nodes returns the sorted names of the nodes with usable endpoints.
func (g *groupEndpoints) nodes() (nodes []string) {
	for i := range g.usable {
		if g.usable[i].Node != "" {
			nodes = append(nodes, g.usable[i].Node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// backends translates endpoints of the port, nil for none.
func (p portEndpoints) backends(list []cluster.Endpoint) []proxy.Backend {
	if len(list) == 0 {
		return nil
	}
	out := make([]proxy.Backend, len(list))
	for i := range list {
		out[i] = proxy.Backend{Addr: p.Target(&list[i]), Node: list[i].Node}
	}
	return out
}

// addrPorts returns where endpoints serve the port, nil for none.
func (p portEndpoints) addrPorts(list []cluster.Endpoint) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, len(list))
	for i := range list {
		out[i] = p.Target(&list[i])
	}
	return out
}
