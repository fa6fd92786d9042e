package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A slice is an EndpointSlice. Its ports and endpoints stay apart: their product may be 20 million.
type slice struct {
	name      Name // its own
	service   Name
	ports     []Port     // sorted, with different names or protocols
	list      []Endpoint // sorted by address, without duplicates
	hostNames bool       // addressType is FQDN
	managed   bool       // by Kubernetes, which makes its ports of the Service's

	matched matchedSlice
}

func (s *slice) equal(o *slice) bool {
	return s.service == o.service && s.hostNames == o.hostNames && s.managed == o.managed &&
		slices.Equal(s.ports, o.ports) && slices.Equal(s.list, o.list)
}

// sliceController is how Kubernetes' own controller marks its slices. A tenant can write that, too,
// but only where it can write any endpoint of the same Service.
const sliceController = "endpointslice-controller.k8s.io"

// maxSlicePorts is how many ports a slice may have. No address can have more in any mode.
const maxSlicePorts = 16384

// parseSlice returns nil for a slice without a Service.
func parseSlice(o *discoveryv1.EndpointSlice) (*slice, Problems) {
	var p Problems
	service := o.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		p.Add("metadata.labels["+discoveryv1.LabelServiceName+"]", "",
			"missing; name the Service that these endpoints are of")
		return nil, p
	}
	namespace := interned(o.Namespace)
	s := &slice{
		name: Name{namespace, o.Name}, service: Name{namespace, service},
		managed: o.Labels[discoveryv1.LabelManagedBy] == sliceController,
	}
	switch {
	case o.AddressType == discoveryv1.AddressTypeFQDN:
		s.hostNames = true // traffic to a host name cannot be forwarded
		return s, nil
	case o.AddressType != discoveryv1.AddressTypeIPv4 && o.AddressType != discoveryv1.AddressTypeIPv6:
		p.Add("addressType", string(o.AddressType), "must be IPv4 or IPv6")
		return s, p
	case len(o.Ports) > maxSlicePorts:
		p.Add("ports", "", fmt.Sprintf("has %d entries, and may have %d; this EndpointSlice is not used", len(o.Ports),
			maxSlicePorts))
		return s, p
	}
	if s.ports = parseEndpointPorts(o.Ports, &p); len(s.ports) == 0 {
		return s, p
	}
	s.list = make([]Endpoint, 0, len(o.Endpoints))
	for i := range o.Endpoints {
		if e, ok := parseEndpoint(&o.Endpoints[i], i, o.AddressType, &p); ok {
			s.list = append(s.list, e)
		}
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
			p.Add(fmt.Sprintf("ports[%d].port", i), fmt.Sprint(*ep.Port),
				"must be from 1 to 65535; this port is left out")
		case !knownProtocol(port.Protocol):
			p.Add(fmt.Sprintf("ports[%d].protocol", i), string(port.Protocol),
				"must be TCP, UDP or SCTP; this port is left out")
		default:
			ports = append(ports, port)
		}
	}
	slices.SortFunc(ports, comparePorts)
	// The API server refuses equal names, but a folder of files does not.
	return slices.CompactFunc(ports, func(a, b Port) bool {
		same := comparePortKeys(a, b) == 0
		if same {
			p.Add("ports", b.Name, fmt.Sprintf("is the name of %d/%s and %d/%s; the second is left out", a.Port,
				a.Protocol, b.Port, b.Protocol))
		}
		return same
	})
}

// comparePortKeys orders by what relates a port of a slice to a port of its Service.
func comparePortKeys(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
}

func comparePorts(a, b Port) int { return cmp.Or(comparePortKeys(a, b), cmp.Compare(a.Port, b.Port)) }

// parseEndpoint uses only the first of several addresses: they belong to the same pod (discovery/v1
// says so).
func parseEndpoint(e *discoveryv1.Endpoint, i int, typ discoveryv1.AddressType, p *Problems) (ep Endpoint, ok bool) {
	field := func() string { return fmt.Sprintf("endpoints[%d].addresses", i) }
	if len(e.Addresses) == 0 {
		p.Add(field(), "", "missing; write the pod's address")
		return ep, false
	}
	a, err := parseAddr(e.Addresses[0])
	if err != nil {
		p.Add(field()+"[0]", e.Addresses[0], err.Error())
		return ep, false
	}
	if string(typ) != string(FamilyOf(a)) {
		p.Add(field()+"[0]", e.Addresses[0], fmt.Sprintf("is no %s address, and addressType says that it is", typ))
		return ep, false
	}
	// DNAT to a loopback, link-local or multicast address would reach the wrong host, or none. The
	// API server refuses such addresses too.
	if err := assignable(a); err != nil {
		p.Add(field()+"[0]", e.Addresses[0], "is no address that a pod can be reached at")
		return ep, false
	}
	ep = Endpoint{
		Addr:        a,
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
	return ep, true
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
	return cmp.Or(e.Addr.Compare(o.Addr), cmp.Compare(e.Port, o.Port))
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
