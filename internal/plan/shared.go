package plan

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A part is one Service of an address that several share: its frontends, and how it
// is served here.
type part struct {
	service cluster.Service
	fronts  []proxy.Frontend
	*verdict
}

// local says whether the Service is for nodes with endpoints of it only.
func (p part) local() bool {
	return p.service.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// relieve returns the frontends of all parts. It changes those of an address that no
// node can serve whole: pods of its Services are on different nodes, and the policy of
// those is Local. Then nodes announce it that can serve one of them, and send the
// clients of the others on to other nodes, masqueraded: better without the client's
// address than not at all. Where a node can serve all, the others leave it to that one;
// but the one that answers over L2 is the only one that does.
func (v *View) relieve(addr netip.Addr, parts []part, answers bool) (fronts []proxy.Frontend) {
	v.scatter(addr, parts, answers)
	for _, p := range parts {
		fronts = append(fronts, p.fronts...)
	}
	return fronts
}

// scatter is what relieve does where no node can serve all.
func (v *View) scatter(addr netip.Addr, parts []part, answers bool) {
	away := slices.ContainsFunc(parts, func(p part) bool { return p.code == cluster.NoLocalEndpoint })
	here := slices.ContainsFunc(parts, func(p part) bool { return p.good() && p.local() })
	if !away || !here && !answers {
		return
	}
	whole := v.whole(addr, parts)
	if len(whole) > 0 && !answers {
		return
	}
	why := "this node answers for the address, and not " + cluster.Enumerate(whole)
	if len(whole) == 0 {
		why = fmt.Sprintf("no node has endpoints of all of %s, which share the address", cluster.Enumerate(needed(parts)))
	}
	for _, p := range parts {
		if p.code != cluster.NoLocalEndpoint {
			continue
		}
		for i := range p.fronts {
			f := &p.fronts[i]
			f.External = proxy.Target{Backends: f.Internal.Backends, Remote: proxy.Masquerade}
		}
		p.code, p.elsewhere = "", true
		p.message = "forwarded to other nodes, where the client's address is not seen, although externalTrafficPolicy is Local: " + why
	}
}

// needs says whether the Service needs a node with endpoints, and has one.
func (p part) needs() bool { return p.local() && (p.good() || p.code == cluster.NoLocalEndpoint) }

// needed are the Services that do.
func needed(parts []part) (names []string) {
	for _, p := range parts {
		if p.needs() {
			names = append(names, p.service.Name.String())
		}
	}
	return names
}

// whole are the nodes that can serve all parts whose policy is Local, as far as there
// is anybody who can.
func (v *View) whole(addr netip.Addr, parts []part) (nodes []string) {
	first := true
	for _, p := range parts {
		if !p.needs() {
			continue
		}
		has := v.nodesOf(p.service, addr)
		if first {
			nodes, first = has, false
			continue
		}
		nodes = slices.DeleteFunc(nodes, func(n string) bool { return !slices.Contains(has, n) })
	}
	return nodes
}

// nodesOf are the nodes with endpoints of a Service that get new connections.
func (v *View) nodesOf(s cluster.Service, addr netip.Addr) (nodes []string) {
	for _, e := range v.sort(s, addr).each(func(p portEndpoints) []cluster.Endpoint { return p.usable }) {
		if e.Node != "" && !slices.Contains(nodes, e.Node) {
			nodes = append(nodes, e.Node)
		}
	}
	return nodes
}
