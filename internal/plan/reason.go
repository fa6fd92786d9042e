package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A reasonFunc adds a Reason about a Service of an address.
type reasonFunc func(protocol string, code cluster.Code, format string, args ...any)

// explain returns the Reasons of a decision: first the ports that Services do not get, then for each
// Service how it is forwarded, and each protocol by which it is, or might be, announced.
func (in *Inputs) explain(d decision) []cluster.Reason {
	reasons := d.conflicts
	owner := in.layer2.ownerText(d.Addr, d.owner)
	for _, s := range d.shares {
		message := in.messageOf(d.Addr, s)
		reason := func(protocol string, code cluster.Code, format string, args ...any) {
			reasons = append(reasons, cluster.Reason{VIP: d.Addr, Service: s.service.Name, Protocol: protocol,
				Code: code, Message: fmt.Sprintf(format, args...)})
		}
		explainProxy(s.verdict, message, reason)
		explainL2(d.owner, owner, s.verdict, message, reason)
		if s.service.L2Node != "" && d.owner.overL2 {
			for _, p := range cluster.PoolNamed(in.adverts.pools, d.origin.Pool).RefusedL2Node(s.service.Spec) {
				reason("l2", p.Code, "%s", p.Clause())
			}
		}
		if !in.adverts.isL2Only(d.origin) {
			in.explainBGP(d, s, message, reason)
		}
	}
	return reasons
}

// explainProxy gives the Reason for how a Service is forwarded.
func explainProxy(is verdict, message string, reason reasonFunc) {
	switch is.code {
	case cluster.NoEndpoints:
		reason("proxy", is.code, "connections are refused: %s", message)
	case cluster.NoSource:
		reason("proxy", is.code, "connections are dropped: %s", message)
	case cluster.ProxyRefused:
		reason("proxy", is.code, "not forwarded: %s", message)
	case cluster.AddressConflict: // Each port has a Reason.
	default:
		reason("proxy", is.served(), "%s", message)
	}
}

// explainBGP gives the Reasons for how the routes of an address are announced for a Service, or are
// not.
func (in *Inputs) explainBGP(d decision, s addressService, message string, reason reasonFunc) {
	p := d.announcement
	switch {
	case !s.good():
		reason("bgp", s.code, "not announced: %s", message)
	case in.noAnnounce != "":
		reason("bgp", in.noAnnounce, "not announced: %s", in.RefusalMessage)
	case d.remote != nil:
		why := in.messageOf(d.Addr, *d.remote)
		reason("bgp", d.remote.code, "not announced: %s shares the address, and its %s", d.remote.service.Name, why)
	case d.Obstruction != "":
		reason("bgp", cluster.Obstructed, "not announced: %s", d.Obstruction)
	case len(p.routes) == 0 && len(p.invalid) > 0:
		reason("bgp", cluster.AttributesRefused, "not announced: %s", strings.Join(p.invalid, "; "))
	case len(p.routes) == 0:
		_, why := in.adverts.of(d.origin, s.service.Spec)
		reason("bgp", cluster.NotAdvertised, "not announced: %s", why)
	default:
		reason("bgp", cluster.ToAnnounce, "%s", p.text(in.routers))
		for _, refused := range p.refusedAggregates {
			reason("bgp", cluster.AggregateRefused, "%s", refused)
		}
		for _, c := range p.conflicts {
			reason("bgp", c.code, "%s", c.message)
		}
		for _, refused := range in.adverts.refusedCommunities(d.Address, s, p) {
			reason("bgp", cluster.AnnotationRefused, "%s", refused)
		}
		for _, invalid := range p.invalid {
			reason("bgp", cluster.AttributesRefused, "left out: %s", invalid)
		}
	}
}

// explainL2 gives the Reason for one Service of an address that is, or may be, announced over
// Layer 2.
func explainL2(o ownerDecision, owner string, is verdict, message string, reason reasonFunc) {
	switch {
	case !o.overL2 && owner == "":
	case o.address != nil && is.good():
		reason("l2", o.code, "%s", owner)
	case o.address != nil:
		reason("l2", is.code, "%s for other Services that share the address; %s", owner, message)
	case o.code == "":
		reason("l2", is.code, "not announced: %s", message)
	default:
		reason("l2", o.code, "not announced: %s", owner)
	}
}

// Wanted is how the message of a Reason begins by which this node is to announce an address. Whether
// it does so is not in a decision.
const Wanted = "to be announced "

// messageOf describes how a Service is served, or why it is not. It names only endpoints that are
// programmed.
func (in *Inputs) messageOf(addr netip.Addr, s addressService) string {
	networks, _ := allowedSources(s.service.Spec, addr)
	switch {
	case s.message != "":
		return s.message
	case s.code == cluster.NoSource && len(s.service.Sources) == 0:
		return fmt.Sprintf("none of its source ranges is a CIDR, so no client may use it; write "+
			"one, such as %s for all", allClients(addr))
	case s.code == cluster.NoSource:
		return fmt.Sprintf("none of its valid source ranges is %s, so no client may use it; add "+
			"one, such as %s for all", cluster.FamilyOf(addr), allClients(addr))
	case s.code == cluster.NoEndpoints:
		return in.unservedText(addr, s)
	case s.code == cluster.NoLocalEndpoint:
		return in.remoteText(s) + in.unservedPorts(addr, s)
	}
	text := s.endpointsText()
	if s.elsewhere != "" {
		text = strings.TrimSuffix(s.elsewhereText()+"; "+text, "; ")
	}
	if !s.local() {
		text += s.groupsText(", ", func(g *groupEndpoints) string { return g.hintsText }) +
			s.groupsText("; ", func(g *groupEndpoints) string { return g.unresponsiveText })
	}
	return text + clientText(s.service.Spec, networks) + s.renamedText() + in.unservedPorts(addr, s)
}

// remoteText says where the endpoints are of ports that have none on this node.
func (in *Inputs) remoteText(s addressService) string {
	ports, on, others := s.portsElsewhere()
	if !others {
		return fmt.Sprintf("externalTrafficPolicy is Local and no endpoint is ready on %s, only %s", in.Node,
			nodesText(on))
	}
	return fmt.Sprintf("externalTrafficPolicy is Local and %s %s no ready endpoint on %s, only %s; nodes with all "+
		"ports announce the address",
		portsText(ports), cluster.Plural(len(ports), "has", "have"), in.Node, nodesText(on))
}

// portsElsewhere returns the ports that only other nodes serve, the endpoints there, and whether this
// node serves others.
func (s addressService) portsElsewhere() (ports []string, on []cluster.Endpoint, others bool) {
	var last *groupEndpoints
	for i := range s.fronts {
		switch p := s.port(i); {
		case !p.served():
		case p.here:
			others = true
		default:
			ports = append(ports, s.portName(i))
			if p.groupEndpoints != last { // nearly always all ports have the same
				last, on = p.groupEndpoints, append(on, p.usable...)
			}
		}
	}
	return ports, on, others
}

// elsewhereText says which ports are forwarded to other nodes, and why.
func (s addressService) elsewhereText() string {
	which := ""
	if ports, _, others := s.portsElsewhere(); others {
		which = fmt.Sprintf("%s %s ", portsText(ports), cluster.Plural(len(ports), "is", "are"))
	}
	return which + "forwarded to other nodes, which do not see the client's address, although " +
		"externalTrafficPolicy is Local: " + s.elsewhere
}

// groupsText returns the first text of the served ports' endpoints after a separator. Ports hardly
// ever differ.
func (s addressService) groupsText(separator string, text func(*groupEndpoints) string) string {
	for _, g := range s.servedGroups() {
		if t := text(g); t != "" {
			return separator + t
		}
	}
	return ""
}

// endpointsText lists endpoints of all ports that are served here, for a sentence; empty if there are
// none. It formats only the first ones, since a Service may have thousands, and this runs with each
// change of one.
func (s addressService) endpointsText() string {
	text, n := "endpoints: ", 0
	if s.local() {
		text = "endpoints on this node: "
	}
	var names []string
	for i := range s.fronts {
		p := s.port(i)
		if !p.served() || s.local() && !p.here {
			continue
		}
		all := p.preferred
		if s.local() {
			all = p.local
		}
		for j := range all[:min(len(all), maxNames+1-len(names))] {
			names = append(names, p.Target(&all[j]).String())
		}
		n += len(all)
	}
	if more := n - maxNames; more > 1 {
		return fmt.Sprintf("%s%s and %d more", text, strings.Join(names[:maxNames], ", "), more)
	}
	if n == 0 {
		return ""
	}
	return text + strings.Join(names, ", ")
}

// clientText describes source ranges, session affinity and scheduler where they are not the
// default, as the end of a sentence.
func clientText(s *cluster.Spec, networks []netip.Prefix) (text string) {
	if len(networks) > 0 {
		text = fmt.Sprintf("; for clients of %s only", prefixesText(networks))
	}
	if s.Affinity > 0 {
		text += fmt.Sprintf("; session affinity for %s", s.Affinity)
	}
	if s.Scheduler != cluster.SchedulerRandom && s.Scheduler != "" {
		text += "; scheduler " + s.Scheduler
	}
	return text
}

// maxNames is how many names a sentence lists before it counts the rest.
const maxNames = 4

// nodesText says where endpoints are, for a sentence. An endpoint may have no nodeName, as in an
// EndpointSlice that a user wrote.
func nodesText(list []cluster.Endpoint) string {
	var names []string
	unnamed := 0
	for _, e := range list {
		if e.Node == "" {
			unnamed++
		} else {
			names = append(names, e.Node)
		}
	}
	slices.Sort(names)
	var parts []string
	if names = slices.Compact(names); len(names) > 0 || unnamed == 0 {
		parts = append(parts, "on "+cluster.Enumerate(names))
	}
	if unnamed > 0 {
		parts = append(parts, fmt.Sprintf("%d without nodeName", unnamed))
	}
	return strings.Join(parts, ", and ")
}
