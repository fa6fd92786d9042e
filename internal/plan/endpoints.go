package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// endpoints are one Service's endpoints of one address family, as this node
// sees them, by the name and the protocol of the port.
type endpoints []portEndpoints

// portEndpoints are those of one port. Each list is in the order of addresses.
// What becomes of an endpoint is decided for each port alone: a port whose last
// ready endpoint is gone falls back by itself.
type portEndpoints struct {
	name     string
	protocol corev1.Protocol

	// usable may be given new flows: the ready ones, or when none is left those
	// that are terminating and still serve (KEP-1669).
	usable []cluster.Endpoint
	// near are those of usable that topology hints leave for this node; all when
	// there are no hints, or none that hold here.
	near []cluster.Endpoint
	// local are the usable ones of this node by the same rule applied to this
	// node alone: a pod that terminates here serves those who still come here,
	// even when others are ready elsewhere. Only with externalTrafficPolicy Local.
	local []cluster.Endpoint
	// rest are in neither of the two: they terminate, are not ready, are for others, or
	// are on a node that is silent. They get no new flows and keep those that they have.
	rest []cluster.Endpoint
	// hints says what was made of topology hints, empty when there are none.
	hints string
	// missed says which nodes are silent that have endpoints, empty when none is.
	missed string
}

// sort places the endpoints of a Service.
func (v *View) sort(s cluster.Service, addr netip.Addr) (e endpoints) {
	if s.Endpoints == nil {
		return nil
	}
	for list := s.Endpoints.List; len(list) > 0; {
		first := &list[0]
		n := slices.IndexFunc(list, func(e cluster.Endpoint) bool { return e.PortName != first.PortName || e.Protocol != first.Protocol })
		if n < 0 {
			n = len(list)
		}
		all := filter(list[:n], func(e *cluster.Endpoint) bool { return e.Addr.Addr().Is4() == addr.Is4() })
		e = append(e, v.place(all, s.Spec, first))
		list = list[n:]
	}
	return e
}

// place places the endpoints of one port, of which like is one.
func (v *View) place(all []cluster.Endpoint, s *cluster.Spec, like *cluster.Endpoint) portEndpoints {
	p := portEndpoints{name: like.PortName, protocol: like.Protocol}
	p.usable, p.missed = v.usable(all, s.PublishNotReady)
	p.near = p.usable
	if len(p.usable) > 0 && ready(&p.usable[0], s.PublishNotReady) { // then all of them are
		p.near, p.hints = v.nearest(p.usable)
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		p.local = usable(filter(all, v.has), s.PublishNotReady)
	}
	p.rest = outside(all, p.near, p.local)
	return p
}

// has says whether an endpoint is on this node.
func (v *View) has(e *cluster.Endpoint) bool { return e.Node != "" && e.Node == v.Node }

// ready is a condition, or a promise.
func ready(e *cluster.Endpoint, notReady bool) bool { return e.Ready || notReady }

// usable applies KEP-1669 to the endpoints of a port.
func usable(all []cluster.Endpoint, notReady bool) []cluster.Endpoint {
	if use := filter(all, func(e *cluster.Endpoint) bool { return ready(e, notReady) }); len(use) > 0 {
		return use
	}
	return filter(all, func(e *cluster.Endpoint) bool { return e.Serving && e.Terminating })
}

// nearest applies topology hints to the ready endpoints of a port, and says what
// came of it. Hints hold only if every endpoint has one and one of them is for this
// node, or else for its zone: a node that knows only a part of them would send all
// its clients to the first one that was hinted.
func (v *View) nearest(ready []cluster.Endpoint) (near []cluster.Endpoint, said string) {
	forZones, forNodes := 0, 0
	for i := range ready {
		if ready[i].ForZones != "" {
			forZones++
		}
		if ready[i].ForNodes != "" {
			forNodes++
		}
	}
	if forZones == 0 && forNodes == 0 {
		return ready, ""
	}
	zone := v.zone()
	if forNodes == len(ready) {
		if near = filter(ready, func(e *cluster.Endpoint) bool { return e.ForNodes.Has(v.Node) }); len(near) > 0 {
			return near, "by topology hints those for node " + v.Node
		}
	}
	if forZones == len(ready) && zone != "" {
		if near = filter(ready, func(e *cluster.Endpoint) bool { return e.ForZones.Has(zone) }); len(near) > 0 {
			return near, "by topology hints those for zone " + zone
		}
	}
	return ready, "topology hints are ignored: " + v.unhinted(forZones == len(ready), forNodes == len(ready), zone)
}

// unhinted says why hints do not hold here, in words that end a sentence.
func (v *View) unhinted(zones, nodes bool, zone string) string {
	switch {
	case zones && zone == "":
		return fmt.Sprintf("node %s has no label %s", v.Node, corev1.LabelTopologyZone)
	case zones:
		return "none is for zone " + zone
	case nodes:
		return "none is for node " + v.Node
	default:
		return "some endpoints have none"
	}
}

// zone is where this node is, empty when it does not say.
func (v *View) zone() string {
	if v.Self == nil {
		return ""
	}
	return v.Self.Labels[corev1.LabelTopologyZone]
}

// filter returns those of list that are wanted: list itself where all are, as
// nearly always.
func filter(list []cluster.Endpoint, wanted func(*cluster.Endpoint) bool) []cluster.Endpoint {
	i := 0
	for i < len(list) && wanted(&list[i]) {
		i++
	}
	if i == len(list) {
		return list
	}
	some := slices.Clone(list[:i])
	for i++; i < len(list); i++ {
		if wanted(&list[i]) {
			some = append(some, list[i])
		}
	}
	return some
}

// outside returns what of all is in neither part; each is a part of all, in the same
// order.
func outside(all, one, other []cluster.Endpoint) (rest []cluster.Endpoint) {
	if len(all) == len(one) {
		return nil
	}
	next := func(part *[]cluster.Endpoint, e cluster.Endpoint) bool {
		if len(*part) == 0 || (*part)[0] != e {
			return false
		}
		*part = (*part)[1:]
		return true
	}
	for _, e := range all {
		inOne, inOther := next(&one, e), next(&other, e)
		if !inOne && !inOther {
			rest = append(rest, e)
		}
	}
	return rest
}

// of finds the endpoints of a Service's port.
func (e endpoints) of(p cluster.Port) portEndpoints {
	i, found := slices.BinarySearchFunc(e, p, func(e portEndpoints, p cluster.Port) int {
		return cmp.Or(cmp.Compare(e.name, p.Name), cmp.Compare(e.protocol, p.Protocol))
	})
	if !found {
		return portEndpoints{}
	}
	return e[i]
}

// each joins one list of all ports. It is the port's own where there is one only, as
// nearly always.
func (e endpoints) each(list func(portEndpoints) []cluster.Endpoint) (all []cluster.Endpoint) {
	if len(e) == 1 {
		return list(e[0])
	}
	for _, p := range e {
		all = append(all, list(p)...)
	}
	return all
}

// judge says why a Service is not announced from this node, and with an empty code
// that nothing speaks against it.
func (v *View) judge(s *cluster.Spec, addr netip.Addr, e endpoints) (cluster.Code, string) {
	local := s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	usable := e.each(func(p portEndpoints) []cluster.Endpoint { return p.usable })
	what := "endpoints: " + addresses(e.each(func(p portEndpoints) []cluster.Endpoint { return p.near })) + e.hinted() + e.missed()
	if local {
		what = "endpoints on this node: " + addresses(e.each(func(p portEndpoints) []cluster.Endpoint { return p.local }))
	}
	networks, open := permitted(s, addr)
	switch {
	case !open:
		return cluster.NoSource, fmt.Sprintf("none of its source ranges is %s, so no client may use it; add one, such as %s for all", cluster.FamilyOf(addr), allClients(addr))
	case len(usable) == 0:
		return cluster.NoEndpoints, "no endpoint is ready anywhere"
	case local && !slices.ContainsFunc(usable, func(e cluster.Endpoint) bool { return v.has(&e) }):
		return cluster.NoLocalEndpoint, fmt.Sprintf("externalTrafficPolicy is Local and no endpoint is ready on %s, only on %s", v.Node, nodes(usable))
	default:
		return "", what + wishes(s, networks)
	}
}

func allClients(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// hinted says what was made of topology hints, in words that end a sentence. Ports
// of a Service hardly ever differ.
func (e endpoints) hinted() string {
	for _, p := range e {
		if p.hints != "" {
			return ", " + p.hints
		}
	}
	return ""
}

// missed says which nodes are silent, in words that end a sentence.
func (e endpoints) missed() string {
	for _, p := range e {
		if p.missed != "" {
			return "; " + p.missed
		}
	}
	return ""
}

// wishes says who may use a Service and how its clients are spread, as far as it is
// not what it is for most, in words that end a sentence.
func wishes(s *cluster.Spec, networks []netip.Prefix) string {
	var b strings.Builder
	if len(networks) > 0 {
		var names []string
		for _, n := range networks {
			names = append(names, n.String())
		}
		fmt.Fprintf(&b, "; for clients of %s only", cluster.Enumerate(names))
	}
	if s.Affinity > 0 {
		fmt.Fprintf(&b, "; a client comes back to the same for %s", s.Affinity)
	}
	if s.Scheduler != cluster.SchedulerRandom && s.Scheduler != "" {
		fmt.Fprintf(&b, "; scheduler %s", s.Scheduler)
	}
	return b.String()
}

func backends(list []cluster.Endpoint) []proxy.Backend {
	if len(list) == 0 {
		return nil
	}
	out := make([]proxy.Backend, len(list))
	for i := range list {
		out[i] = proxy.Backend{Addr: list[i].Addr, Node: list[i].Node}
	}
	return out
}

func addrPorts(list []cluster.Endpoint) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, len(list))
	for i := range list {
		out[i] = list[i].Addr
	}
	return out
}
