package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// explain returns the Reasons for one Service of an address, which is announced by p and owner:
// first how it is forwarded, then each protocol by which it is, or might be, announced.
func (v *View) explain(a *Address, s share, remote *share, p announcement, owner ownerDecision) (reasons []cluster.Reason) {
	reason := func(protocol string, code cluster.Code, format string, args ...any) {
		reasons = append(reasons, cluster.Reason{VIP: a.Addr, Service: s.service.Name, Protocol: protocol, Code: code, Message: fmt.Sprintf(format, args...)})
	}
	switch s.code {
	case cluster.NoEndpoints:
		reason("proxy", s.code, "connections are refused: %s", s.message)
	case cluster.NoSource:
		reason("proxy", s.code, "connections are dropped: %s", s.message)
	case cluster.ProxyRefused:
		reason("proxy", s.code, "not forwarded: %s", s.message)
	case cluster.AddressConflict: // Each port has a Reason.
	default:
		reason("proxy", s.served(), "%s", s.message)
	}
	explainL2(owner, s.verdict, reason)
	if s.service.L2Node != "" && owner.overL2 {
		if why := cluster.PoolNamed(v.fromPools, a.origin.Pool).RefusedL2Node(s.service.Spec); why != "" {
			reason("l2", cluster.AnnotationRefused, "%s", why)
		}
	}
	if v.isL2Only(a.origin) {
		return reasons
	}
	switch {
	case !s.good():
		reason("bgp", s.code, "not announced: %s", s.message)
	case v.noAnnounce != "":
		reason("bgp", v.noAnnounce, "not announced: %s", v.RefusalMessage)
	case remote != nil:
		reason("bgp", remote.code, "not announced: %s shares the address, and its %s", remote.service.Name, remote.message)
	case len(p.routes) == 0 && len(p.invalid) > 0:
		reason("bgp", cluster.AttributesRefused, "not announced: %s", strings.Join(p.invalid, "; "))
	case len(p.routes) == 0:
		_, why := v.advertisementsFor(a.origin, s.service.Spec)
		reason("bgp", cluster.NotAdvertised, "not announced: %s", why)
	default:
		reason("bgp", cluster.Announced, "%s", p.text(v))
		for _, refused := range p.refusedAggregates {
			reason("bgp", cluster.AggregateRefused, "%s", refused)
		}
		for _, c := range p.conflicts {
			reason("bgp", c.code, "%s", c.message)
		}
		for _, refused := range v.refusedCommunities(a, s, p) {
			reason("bgp", cluster.AnnotationRefused, "%s", refused)
		}
		for _, invalid := range p.invalid {
			reason("bgp", cluster.AttributesRefused, "left out: %s", invalid)
		}
	}
	return reasons
}

// explainL2 gives the Reason for one Service of an address that is, or may be, announced over
// Layer 2.
func explainL2(o ownerDecision, is verdict, reason func(protocol string, code cluster.Code, format string, args ...any)) {
	switch {
	case !o.overL2 && o.why == "":
	case o.address != nil && is.good():
		reason("l2", o.code, "%s", o.why)
	case o.address != nil:
		reason("l2", is.code, "%s for other Services that share the address; %s", o.why, is.message)
	case o.code == "":
		reason("l2", is.code, "not announced: %s", is.message)
	default:
		reason("l2", o.code, "not announced: %s", o.why)
	}
}

// assess decides whether a Service may be announced from this node: the code is empty if so,
// and the message describes its endpoints.
func (v *View) assess(s *cluster.Spec, addr netip.Addr, e endpoints) (cluster.Code, string) {
	local := s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	usable := e.join(func(p portEndpoints) []cluster.Endpoint { return p.usable })
	text := "endpoints: " + addressesText(e.join(func(p portEndpoints) []cluster.Endpoint { return p.preferred })) + e.hintsText() + e.silentText()
	if local {
		text = "endpoints on this node: " + addressesText(e.join(func(p portEndpoints) []cluster.Endpoint { return p.local }))
	}
	networks, open := allowedSources(s, addr)
	switch {
	case !open:
		return cluster.NoSource, fmt.Sprintf("none of its source ranges is %s, so no client may use it; add one, such as %s for all", cluster.FamilyOf(addr), allClients(addr))
	case len(usable) == 0:
		return cluster.NoEndpoints, "no endpoint is ready anywhere"
	case local && !slices.ContainsFunc(usable, func(e cluster.Endpoint) bool { return v.isLocal(&e) }):
		return cluster.NoLocalEndpoint, fmt.Sprintf("externalTrafficPolicy is Local and no endpoint is ready on %s, only on %s", v.Node, nodesText(usable))
	default:
		return "", text + clientText(s, networks)
	}
}

// clientText describes source ranges, session affinity and scheduler where they are not the
// default, as the end of a sentence.
func clientText(s *cluster.Spec, networks []netip.Prefix) string {
	var b strings.Builder
	if len(networks) > 0 {
		var names []string
		for _, n := range networks {
			names = append(names, n.String())
		}
		fmt.Fprintf(&b, "; for clients of %s only", cluster.Enumerate(names))
	}
	if s.Affinity > 0 {
		fmt.Fprintf(&b, "; session affinity for %s", s.Affinity)
	}
	if s.Scheduler != cluster.SchedulerRandom && s.Scheduler != "" {
		fmt.Fprintf(&b, "; scheduler %s", s.Scheduler)
	}
	return b.String()
}

// maxNames is how many names a sentence lists before it counts the rest.
const maxNames = 4

// nodesText lists the nodes of endpoints for a sentence. An endpoint may have no node, as in an
// EndpointSlice that a user wrote.
func nodesText(list []cluster.Endpoint) string {
	var names []string
	for _, e := range list {
		names = append(names, cmp.Or(e.Node, "an unnamed node"))
	}
	slices.Sort(names)
	return cluster.Enumerate(slices.Compact(names))
}

// addressesText lists endpoints for a sentence. It formats only the first ones, since a Service
// may have thousands, and this runs with each change of one.
func addressesText(list []cluster.Endpoint) string {
	var names []string
	for _, e := range list {
		if len(names) > maxNames {
			break
		}
		names = append(names, e.Addr.String())
	}
	if more := len(list) - maxNames; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}
