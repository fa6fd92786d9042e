package cluster

import (
	"hash/maphash"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// servicePorts are the ports of a Service, as its slices may name them.
type servicePorts struct {
	ports []Port
	*portIndex
}

// A portIndex finds ports by what a slice has of them. Most Services need none.
type portIndex struct {
	byName []int32 // of many ports, sorted by their names and protocols
	// byTarget and count are there once a slice has other names: the ports, sorted by protocol and
	// Target, and how many a protocol has.
	byTarget []int32
	count    map[corev1.Protocol]int
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

func portName(name string, p corev1.Protocol) Port { return Port{Name: name, Protocol: p} }

// find returns the index of the port with a name and protocol.
func (s *servicePorts) find(name string, protocol corev1.Protocol) (i int, found bool) {
	if s.byName != nil {
		at, found := slices.BinarySearchFunc(s.byName, portName(name, protocol),
			func(i int32, p Port) int { return comparePortKeys(s.ports[i], p) })
		if !found {
			return 0, false
		}
		return int(s.byName[at]), true
	}
	i = slices.IndexFunc(s.ports, func(p Port) bool { return p.Name == name && p.Protocol == protocol })
	return i, i >= 0
}

func newServicePorts(ports []Port) *servicePorts {
	s := &servicePorts{ports, &noIndex}
	if len(ports) > fewPorts {
		// A map would need more memory than the ports.
		s.portIndex = &portIndex{byName: sortedIndex(ports, comparePortKeys)}
	}
	return s
}

// noIndex is that of few ports.
var noIndex portIndex

// sortedIndex returns the indices of ports, in an order.
func sortedIndex(ports []Port, compare func(a, b Port) int) []int32 {
	index := make([]int32, len(ports))
	for i := range ports {
		index[i] = int32(i)
	}
	slices.SortStableFunc(index, func(a, b int32) int { return compare(ports[a], ports[b]) })
	return index
}

// match matches the ports of a slice by name and protocol, as kube-proxy does. If Kubernetes manages
// the slice, what is left may be renamed ports.
func (s *servicePorts) match(in []Port, managed bool) matchedSlice {
	m := matchedSlice{with: s}
	var others []Port
	for _, p := range in {
		if _, has := s.find(p.Name, p.Protocol); has {
			m.ports = append(m.ports, p)
		} else {
			others = append(others, p)
		}
	}
	if managed && len(others) > 0 {
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
