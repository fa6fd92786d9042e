package cluster

import (
	"hash/maphash"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// servicePorts are the ports of a Service, as its slices may name them.
type servicePorts struct {
	ports []Port
	index []int32 // of many ports, sorted by their names and protocols
	// former has the earlier names of ports, by number, while a slice has not the new name yet.
	former map[Port]string
}

// A matchedSlice has the ports of a slice that its Service has.
type matchedSlice struct {
	with    *servicePorts // nil: not matched yet
	ports   []Port        // by the names of the Service, sorted
	hash    uint64        // of ports
	others  []Port        // the first of the others
	renamed []PortRename
}

// hashSeed is random, so that no tenant can write different ports with the same hash.
var hashSeed = maphash.MakeSeed()

// fewPorts are searched one by one, without an index.
const fewPorts = 8

// portNumber is what clients see of a port, and what stays the same if it is renamed.
func portNumber(p Port) Port { return Port{Protocol: p.Protocol, Port: p.Port} }

func portName(name string, p corev1.Protocol) Port { return Port{Name: name, Protocol: p} }

// find returns the index of the port with a name and protocol.
func (s *servicePorts) find(name string, protocol corev1.Protocol) (i int, found bool) {
	if s.index != nil {
		at, found := slices.BinarySearchFunc(s.index, portName(name, protocol), func(i int32, p Port) int { return comparePortKeys(s.ports[i], p) })
		if !found {
			return 0, false
		}
		return int(s.index[at]), true
	}
	i = slices.IndexFunc(s.ports, func(p Port) bool { return p.Name == name && p.Protocol == protocol })
	return i, i >= 0
}

func newServicePorts(ports []Port) *servicePorts {
	s := &servicePorts{ports: ports}
	if len(ports) > fewPorts {
		// A map would need more memory than the ports.
		s.index = make([]int32, len(ports))
		for i := range ports {
			s.index[i] = int32(i)
		}
		slices.SortFunc(s.index, func(a, b int32) int { return comparePortKeys(ports[a], ports[b]) })
	}
	return s
}

// renamedFrom returns the ports after an update of the Service. If it renames a port, the slices
// follow later: the EndpointSlice controller must read the Service first. Until then, what has
// served the port's number still does.
func (s *servicePorts) renamedFrom(ports []Port) *servicePorts {
	next := newServicePorts(ports)
	if s == nil {
		return next
	}
	was := make(map[Port]string, len(s.ports))
	for _, p := range s.ports {
		was[portNumber(p)] = p.Name
	}
	for number, former := range s.former {
		was[number] = former
	}
	for _, p := range ports {
		if name, existed := was[portNumber(p)]; existed && name != p.Name {
			if next.former == nil {
				next.former = map[Port]string{}
			}
			next.former[portNumber(p)] = name
		}
	}
	return next
}

// keeping returns s without earlier names that no slice has now.
func (s *servicePorts) keeping(used []PortRename) *servicePorts {
	left := map[Port]string{}
	for _, r := range used {
		left[portNumber(r.Port)] = r.Former
	}
	if len(left) == len(s.former) {
		return s
	}
	next := *s
	next.former = left
	return &next
}

// match matches the ports of a slice by name and protocol, as kube-proxy does.
func (s *servicePorts) match(in []Port) matchedSlice {
	m := matchedSlice{with: s}
	var others []Port
	for _, p := range in {
		if _, has := s.find(p.Name, p.Protocol); has {
			m.ports = append(m.ports, p)
		} else {
			others = append(others, p)
		}
	}
	if len(others) > 0 && len(s.former) > 0 {
		others = s.matchRenamed(&m, others)
	}
	m.others = slices.Clone(others[:min(len(others), maxExamples)])
	var h maphash.Hash
	h.SetSeed(hashSeed)
	for _, p := range m.ports {
		maphash.WriteComparable(&h, p)
	}
	m.hash = h.Sum64()
	return m
}

// matchRenamed adds the ports that a slice still has under an earlier name, and not under the new
// one. A name that a port of the Service has now means that port. It returns the others.
func (s *servicePorts) matchRenamed(m *matchedSlice, in []Port) (others []Port) {
	byFormer := make(map[Port]Port, len(s.former))
	for _, p := range s.ports {
		if former, renamed := s.former[portNumber(p)]; renamed {
			byFormer[portName(former, p.Protocol)] = p
		}
	}
	named := m.ports // sorted
	for _, p := range in {
		now, renamed := byFormer[portName(p.Name, p.Protocol)]
		if _, has := slices.BinarySearchFunc(named, now, comparePortKeys); !renamed || has {
			others = append(others, p)
			continue
		}
		m.renamed = append(m.renamed, PortRename{now, p.Name})
		m.ports = append(slices.Clip(m.ports), Port{now.Name, p.Protocol, p.Port})
		named = m.ports[:len(named)]
	}
	slices.SortFunc(m.ports, comparePortKeys)
	return others
}
