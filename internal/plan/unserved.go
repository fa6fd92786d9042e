package plan

import (
	"fmt"
	"net/netip"
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
func (v *View) unservedPorts(addr netip.Addr, s addressService) string {
	text := ""
	refused := v.refusedText(addr, s)
	for _, c := range s.causes(addr, &refused) {
		text += fmt.Sprintf("; %s %s not served: %s", portsText(c.ports), cluster.Plural(len(c.ports), "is", "are"),
			c.why)
	}
	if refused != "" {
		text += "; " + refused
	}
	return text
}

// unservedText says why no port of a Service is served.
func (v *View) unservedText(addr netip.Addr, s addressService) string {
	refused := v.refusedText(addr, s)
	causes := s.causes(addr, &refused)
	var parts []string
	for _, c := range causes {
		if len(causes) == 1 {
			parts = append(parts, c.why)
		} else {
			parts = append(parts, portsText(c.ports)+": "+c.why)
		}
	}
	if refused != "" {
		parts = append(parts, refused)
	}
	return strings.Join(parts, "; ")
}

// causes returns why ports of a Service are not served, in the order of the ports. If refused
// endpoints are a cause, refused becomes empty.
func (s addressService) causes(addr netip.Addr, refused *string) (causes []portCause) {
	cause := *refused
	why := s.whyUnserved(addr, cause)
	for i := range s.fronts {
		p := s.port(i)
		if p.served() {
			continue
		}
		text, at := why(s.ports[i]), 0
		if text == cause {
			*refused = ""
		}
		for at < len(causes) && causes[at].why != text {
			at++
		}
		switch {
		case at < len(causes):
		case at == maxCauses:
			continue
		default:
			causes = append(causes, portCause{why: text})
		}
		causes[at].ports = append(causes[at].ports, s.portName(i))
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
func (v *View) refusedText(addr netip.Addr, s addressService) string {
	if s.service.Endpoints == nil {
		return ""
	}
	var names []string
	pool := ""
	for _, a := range s.service.Endpoints.Refused {
		if a.Is4() == addr.Is4() {
			names, pool = append(names, a.String()), cluster.PoolOf(v.adverts.pools, a)
		}
	}
	switch of := fmt.Sprintf("%s %s %s not used", cluster.Plural(len(names), "endpoint", "endpoints"),
		cluster.Enumerate(names), cluster.Plural(len(names), "is", "are")); {
	case len(names) == 0:
		return ""
	case pool == "":
		return of + ", since Services have such addresses"
	default:
		return fmt.Sprintf("%s, since the addresses of AddressPool %s are for Services", of, pool)
	}
}

// renamedText names ports that EndpointSlices have under another name.
func (s addressService) renamedText() string {
	if s.service.Endpoints == nil {
		return ""
	}
	var b strings.Builder
	for _, r := range s.service.Endpoints.Renamed {
		fmt.Fprintf(&b, "; port %s is named %s in EndpointSlices until they follow", portLabel(r.Port),
			portLabel(cluster.Port{Name: r.Name, Protocol: r.Port.Protocol, Port: r.Port.Port}))
	}
	return b.String()
}

func (s addressService) portName(i int) string { return portLabel(s.service.Ports[s.ports[i]]) }

// portLabel is the name of a port, or its number if it has none.
func portLabel(p cluster.Port) string {
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
}

// portsText lists ports for a sentence.
func portsText(names []string) string {
	return cluster.Plural(len(names), "port ", "ports ") + cluster.Enumerate(names)
}

// othersText lists the ports of slices for a sentence.
func othersText(ports []cluster.Port) string {
	var names []string
	for _, p := range ports {
		if p.Name == "" {
			names = append(names, fmt.Sprintf("unnamed %d/%s", p.Port, p.Protocol))
		} else {
			names = append(names, fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol))
		}
	}
	return cluster.Enumerate(names)
}
