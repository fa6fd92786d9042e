package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// maxCauses is how many causes a Reason names.
const maxCauses = 4

// A portCause is why ports are not served.
type portCause struct {
	why   string
	ports []string
}

// unservedPorts names the ports of a Service that no node serves, as the end of a sentence, and the
// endpoints that are not used.
func (in *Inputs) unservedPorts(addr netip.Addr, s addressService) (text string) {
	for _, c := range s.causes(addr, in.refusedText(addr, s)) {
		text += "; "
		if len(c.ports) > 0 {
			text += fmt.Sprintf("%s %s not served: ", portsText(c.ports), cluster.Plural(len(c.ports), "is", "are"))
		}
		text += c.why
	}
	return text
}

// unservedText says why no port of a Service is served.
func (in *Inputs) unservedText(addr netip.Addr, s addressService) string {
	var parts []string
	for _, c := range s.causes(addr, in.refusedText(addr, s)) {
		if some := len(c.ports); some > 0 && some < len(s.fronts) {
			c.why = portsText(c.ports) + ": " + c.why
		}
		parts = append(parts, c.why)
	}
	return strings.Join(parts, "; ")
}

// causes returns why ports of a Service are not served, in the order of the ports, and then, without
// ports, refused endpoints that are no cause.
func (s addressService) causes(addr netip.Addr, refused string) (causes []portCause) {
	why := s.whyUnserved(addr, refused)
	for i := range s.fronts {
		if s.port(i).served() {
			continue
		}
		text := why(s.ports[i])
		at := slices.IndexFunc(causes, func(c portCause) bool { return c.why == text })
		if at < 0 {
			if len(causes) == maxCauses {
				continue
			}
			at, causes = len(causes), append(causes, portCause{why: text})
		}
		causes[at].ports = append(causes[at].ports, s.portName(i))
	}
	if refused != "" && !slices.ContainsFunc(causes, func(c portCause) bool { return c.why == refused }) {
		causes = append(causes, portCause{why: refused})
	}
	return causes
}

// whyUnserved returns a function that says why a port has no usable endpoint.
func (s addressService) whyUnserved(addr netip.Addr, refused string) func(port int) string {
	e := s.service.Endpoints
	other := map[int]bool{} // ports with endpoints of the other family
	for _, g := range s.service.PortGroups(!addr.Is4()) {
		for _, p := range g.Ports {
			other[p.Index] = true
		}
	}
	return func(port int) string {
		switch p := s.endpoints.ports[port]; {
		case p.groupEndpoints != nil:
			return fmt.Sprintf("no endpoint is ready anywhere (0 of %d)", len(p.all))
		case e == nil:
			return "the Service has no EndpointSlice"
		case len(e.Subsets) == 0 && e.Targets > 0:
			return fmt.Sprintf("all its ports have %d endpoints together, which is too many; use several Services",
				e.Targets)
		case other[port]:
			return fmt.Sprintf("no endpoint has an %s address, only of the other family", cluster.FamilyOf(addr))
		case e.Has(s.service.Ports[port]) && refused != "":
			return refused
		case e.Has(s.service.Ports[port]), len(e.Subsets) == 0 && !e.HostNames:
			return "the EndpointSlices have no endpoint"
		case len(e.Others) > 0:
			return "no EndpointSlice has the port's name and protocol; other ports there: " + othersText(e.Others)
		case e.HostNames:
			return "its EndpointSlice has host names (addressType FQDN), and only addresses can be forwarded to"
		}
		return "no EndpointSlice has the port"
	}
}

// refusedText names endpoints that are not used.
func (in *Inputs) refusedText(addr netip.Addr, s addressService) string {
	if s.service.Endpoints == nil {
		return ""
	}
	var names []string
	pool := ""
	for _, a := range s.service.Endpoints.Refused {
		if a.Is4() == addr.Is4() {
			names, pool = append(names, a.String()), cluster.PoolOf(in.adverts.pools, a)
		}
	}
	if len(names) == 0 {
		return ""
	}
	why := "Services have such addresses"
	if pool != "" {
		why = fmt.Sprintf("the addresses of AddressPool %s are for Services", pool)
	}
	return fmt.Sprintf("%s %s %s not used, since %s", cluster.Plural(len(names), "endpoint", "endpoints"),
		cluster.Enumerate(names), cluster.Plural(len(names), "is", "are"), why)
}

// renamedText names ports that EndpointSlices have under another name.
func (s addressService) renamedText() (text string) {
	if s.service.Endpoints == nil {
		return ""
	}
	for _, r := range s.service.Endpoints.Renamed {
		now := cluster.Port{Name: r.Name, Protocol: r.Port.Protocol, Port: r.Port.Port}
		text += fmt.Sprintf("; port %s is named %s in EndpointSlices until they follow", portLabel(r.Port),
			portLabel(now))
	}
	return text
}

func (s addressService) portName(i int) string { return portLabel(s.service.Ports[s.ports[i]]) }

// portLabel is the name of a port, or its number if it has none.
func portLabel(p cluster.Port) string {
	return cmp.Or(p.Name, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
}

// portsText lists ports for a sentence.
func portsText(names []string) string {
	return cluster.Plural(len(names), "port ", "ports ") + cluster.Enumerate(names)
}

// othersText lists the ports of slices for a sentence.
func othersText(ports []cluster.Port) string {
	var names []string
	for _, p := range ports {
		names = append(names, fmt.Sprintf("%s %d/%s", cmp.Or(p.Name, "unnamed"), p.Port, p.Protocol))
	}
	return cluster.Enumerate(names)
}
