package cluster

import (
	"cmp"
	"net/netip"
	"slices"
)

// A PortGroup is the ports of a Service that have the same endpoints: nearly always all ports. So a
// decision costs the number of ports plus that of endpoints, not the product.
type PortGroup struct {
	Ports []GroupPort
	// Endpoints are of one address family, sorted by address, then port.
	Endpoints []Endpoint
}

// A GroupPort is a port of a Service.
type GroupPort struct {
	Index  int    // in the Service's Ports
	Number uint16 // in the pods; 0: each Endpoint has its own
}

// Target returns where an endpoint serves the port.
func (p GroupPort) Target(e *Endpoint) netip.AddrPort {
	return netip.AddrPortFrom(e.Addr, cmp.Or(p.Number, e.Port))
}

// A portSource is a subset with a port, and the number there.
type portSource struct {
	subset int
	number uint16
}

// PortGroups returns the ports of a Service that have endpoints of a family, ready or not.
func (s Service) PortGroups(is4 bool) (groups []PortGroup) {
	if s.Endpoints == nil {
		return nil
	}
	if len(s.Endpoints.Subsets) == 1 {
		return s.onlyGroup(&s.Endpoints.Subsets[0], is4)
	}
	sources := s.portSources(is4)
	bySubset := make([]int, len(s.Endpoints.Subsets)) // 1 + the index of the group
	for i, from := range sources {
		switch {
		case len(from) == 0:
		case len(from) > 1:
			groups = append(groups, PortGroup{[]GroupPort{{Index: i}}, s.Endpoints.gather(from, is4)})
		default:
			g := &bySubset[from[0].subset]
			if *g == 0 {
				groups = append(groups, PortGroup{Endpoints: OfFamily(s.Endpoints.Subsets[from[0].subset].List, is4)})
				*g = len(groups)
			}
			groups[*g-1].Ports = append(groups[*g-1].Ports, GroupPort{i, from[0].number})
		}
	}
	return groups
}

// onlyGroup is PortGroups with one subset, as nearly always.
func (s Service) onlyGroup(subset *Subset, is4 bool) []PortGroup {
	g := PortGroup{make([]GroupPort, 0, len(subset.Ports)), OfFamily(subset.List, is4)}
	for i, p := range s.Ports {
		if at, has := slices.BinarySearchFunc(subset.Ports, p, comparePortKeys); has {
			g.Ports = append(g.Ports, GroupPort{i, subset.Ports[at].Port})
		}
	}
	if len(g.Ports) == 0 || len(g.Endpoints) == 0 {
		return nil
	}
	return []PortGroup{g}
}

// portSources returns for each port of the Service where its endpoints of a family are.
func (s Service) portSources(is4 bool) [][]portSource {
	ports := newServicePorts(s.Ports)
	sources := make([][]portSource, len(s.Ports))
	for i := range s.Endpoints.Subsets {
		subset := &s.Endpoints.Subsets[i]
		if len(OfFamily(subset.List, is4)) == 0 {
			continue
		}
		for _, p := range subset.Ports {
			if at, has := ports.find(p.Name, p.Protocol); has {
				sources[at] = append(sources[at], portSource{i, p.Port})
			}
		}
	}
	return sources
}

// gather merges the endpoints of a port that several subsets have.
func (e *Endpoints) gather(from []portSource, is4 bool) (list []Endpoint) {
	for _, f := range from {
		for _, endpoint := range OfFamily(e.Subsets[f.subset].List, is4) {
			endpoint.Port = f.number
			list = append(list, endpoint)
		}
	}
	return compactEndpoints(list)
}

// OfFamily returns the part of a list, which is sorted by address, that is IPv4 or IPv6.
func OfFamily(list []Endpoint, is4 bool) []Endpoint {
	if n := len(list); n == 0 || list[0].Addr.Is4() == list[n-1].Addr.Is4() { // as nearly always
		if n > 0 && list[0].Addr.Is4() != is4 {
			return nil
		}
		return list
	}
	six, _ := slices.BinarySearchFunc(list, true, func(e Endpoint, _ bool) int {
		if e.Addr.Is4() {
			return -1
		}
		return 1
	})
	if is4 {
		return list[:six:six]
	}
	return list[six:]
}
