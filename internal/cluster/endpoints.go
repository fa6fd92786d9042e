package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A slice is the contribution of one EndpointSlice to a Service.
type slice struct {
	service Name
	list    []Endpoint // sorted, without duplicates
}

func (s *slice) equal(o *slice) bool {
	return s.service == o.service && slices.Equal(s.list, o.list)
}

func (e *Endpoints) equal(o *Endpoints) bool { return slices.Equal(e.List, o.List) }

// parseSlice returns nil for a slice without a Service.
func parseSlice(o *discoveryv1.EndpointSlice) (*slice, []Problem) {
	var p Problems
	service := o.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		p.Add("metadata.labels["+discoveryv1.LabelServiceName+"]", "", "missing; name the Service that these endpoints are of")
		return nil, p
	}
	s := &slice{service: Name{interned(o.Namespace), service}}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		return s, nil // traffic to a host name cannot be forwarded
	default:
		p.Add("addressType", string(o.AddressType), "must be IPv4 or IPv6")
		return s, p
	}
	ports := parseEndpointPorts(o.Ports, &p)
	s.list = slices.Grow(s.list, len(o.Endpoints)*len(ports))
	for i := range o.Endpoints {
		s.list = append(s.list, parseEndpoint(&o.Endpoints[i], i, o.AddressType, ports, &p)...)
	}
	s.list = compactEndpoints(s.list)
	return s, p
}

// parseEndpointPorts ignores ports without a number ("all ports"), because no Service can refer to
// them.
func parseEndpointPorts(in []discoveryv1.EndpointPort, p *Problems) []Port {
	var ports []Port
	for i, ep := range in {
		if ep.Port == nil {
			continue
		}
		port := Port{Protocol: corev1.ProtocolTCP, Port: uint16(*ep.Port)}
		if ep.Name != nil {
			port.Name = interned(*ep.Name)
		}
		if ep.Protocol != nil {
			port.Protocol = interned(*ep.Protocol)
		}
		switch {
		case *ep.Port < 1 || *ep.Port > 65535:
			p.Add(fmt.Sprintf("ports[%d].port", i), fmt.Sprint(*ep.Port), "must be from 1 to 65535; this port is left out")
		case !knownProtocol(port.Protocol):
			p.Add(fmt.Sprintf("ports[%d].protocol", i), string(port.Protocol), "must be TCP, UDP or SCTP; this port is left out")
		default:
			ports = append(ports, port)
		}
	}
	return ports
}

// parseEndpoint makes one Endpoint per port. Of several addresses only the first is used: they
// belong to the same pod (discovery/v1 says so).
func parseEndpoint(e *discoveryv1.Endpoint, i int, typ discoveryv1.AddressType, ports []Port, p *Problems) []Endpoint {
	field := fmt.Sprintf("endpoints[%d].addresses", i)
	if len(e.Addresses) == 0 {
		p.Add(field, "", "missing; write the pod's address")
		return nil
	}
	field += "[0]"
	a, err := parseAddr(e.Addresses[0])
	if err != nil {
		p.Add(field, e.Addresses[0], err.Error())
		return nil
	}
	if string(typ) != string(FamilyOf(a)) {
		p.Add(field, e.Addresses[0], fmt.Sprintf("is no %s address, and addressType says that it is", typ))
		return nil
	}
	// DNAT to a loopback, link-local or multicast address would reach the wrong host, or none. The
	// API server refuses such addresses too.
	if err := assignable(a); err != nil {
		p.Add(field, e.Addresses[0], "is no address that a pod can be reached at")
		return nil
	}
	ep := Endpoint{
		Ready:       orDefault(e.Conditions.Ready, true),
		Serving:     orDefault(e.Conditions.Serving, true),
		Terminating: orDefault(e.Conditions.Terminating, false),
	}
	if e.NodeName != nil {
		ep.Node = interned(*e.NodeName)
	}
	if e.Hints != nil {
		ep.ForZones = hint(e.Hints.ForZones, func(z discoveryv1.ForZone) string { return z.Name })
		ep.ForNodes = hint(e.Hints.ForNodes, func(n discoveryv1.ForNode) string { return n.Name })
	}
	list := make([]Endpoint, 0, len(ports))
	for _, port := range ports {
		ep.PortName, ep.Protocol, ep.Addr = port.Name, port.Protocol, netip.AddrPortFrom(a, port.Port)
		list = append(list, ep)
	}
	return list
}

// hint ignores invalid names: a zone is the value of a label, which contains no comma.
func hint[T any](in []T, name func(T) string) Hint {
	var names []string
	for _, v := range in {
		if n := name(v); n != "" && !strings.Contains(n, ",") {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return interned(Hint(strings.Join(slices.Compact(names), ",")))
}

func orDefault[T any](v *T, def T) T {
	if v == nil {
		return def
	}
	return *v
}

// compactEndpoints sorts list and removes duplicates. While the controller moves an endpoint from
// one slice to another, it may be in both, with conditions of two moments. The more ready entry
// stays, so that traffic is not interrupted.
func compactEndpoints(list []Endpoint) []Endpoint {
	slices.SortFunc(list, func(a, b Endpoint) int {
		return cmp.Or(a.compareKey(b), a.compareState(b))
	})
	return slices.CompactFunc(list, func(a, b Endpoint) bool { return a.compareKey(b) == 0 })
}

func (e Endpoint) compareKey(o Endpoint) int {
	return cmp.Or(
		cmp.Compare(e.PortName, o.PortName),
		cmp.Compare(e.Protocol, o.Protocol),
		e.Addr.Compare(o.Addr),
	)
}

// compareState sorts the better of two first.
func (e Endpoint) compareState(o Endpoint) int {
	return cmp.Or(
		trueFirst(e.Ready, o.Ready),
		trueFirst(e.Serving, o.Serving),
		trueFirst(!e.Terminating, !o.Terminating),
		trueFirst(e.Node != "", o.Node != ""),
		cmp.Compare(e.Node, o.Node),
		cmp.Compare(e.ForZones, o.ForZones),
		cmp.Compare(e.ForNodes, o.ForNodes),
	)
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// join merges the slices of a Service.
func join(parts []*slice) *Endpoints {
	switch len(parts) {
	case 0:
		return nil
	case 1:
		return &Endpoints{List: parts[0].list}
	}
	var list []Endpoint
	for _, s := range parts {
		list = append(list, s.list...)
	}
	return &Endpoints{List: compactEndpoints(list)}
}
