package cluster

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

func compareTargets(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Target, b.Target))
}

// withTargets adds the index by numbers.
func (s *servicePorts) withTargets() {
	if s.byTarget != nil {
		return
	}
	count := map[corev1.Protocol]int{}
	for _, p := range s.ports {
		count[p.Protocol]++
	}
	s.portIndex = &portIndex{s.byName, sortedIndex(s.ports, compareTargets), count}
}

// matchRenamed adds the ports of a slice that have another name in the Service. Kubernetes makes each
// port of its slices of a port of the Service, so a name that the Service has not is from before an
// update or after it: the two watches have no common order. The number tells which port it is, if
// the Service says the number. Otherwise it is the only port that is left on both sides. The others
// are returned. This takes time in proportion to the slice: a tenant may write 1,000 slices of a
// Service with 16,384 ports.
func (s *servicePorts) matchRenamed(m *matchedSlice, in []Port) (others []Port) {
	s.withTargets()
	others = s.matchTargets(m, in)
	matched, left := map[corev1.Protocol]int{}, map[corev1.Protocol]int{}
	for _, p := range m.ports {
		matched[p.Protocol]++
	}
	for _, p := range others {
		left[p.Protocol]++
	}
	named := m.ports
	others = slices.DeleteFunc(others, func(p Port) bool {
		if left[p.Protocol] != 1 || s.count[p.Protocol] != matched[p.Protocol]+1 {
			return false
		}
		i := slices.IndexFunc(s.ports, func(now Port) bool {
			return now.Protocol == p.Protocol && !hasPort(named, now)
		})
		if s.ports[i].Target != 0 {
			return false // its pods' port has another number
		}
		m.rename(s.ports[i], p)
		return true
	})
	slices.SortFunc(m.ports, comparePortKeys)
	return others
}

// matchTargets adds the ports of a slice that have the number of a port that the slice has not by
// name, each for one port. It returns the others.
func (s *servicePorts) matchTargets(m *matchedSlice, in []Port) (others []Port) {
	named := m.ports
	next := map[Port]int{} // in byTarget
	for _, p := range in {
		key := Port{Protocol: p.Protocol, Target: p.Port}
		i, seen := next[key]
		if !seen {
			i, _ = slices.BinarySearchFunc(s.byTarget, key,
				func(i int32, key Port) int { return compareTargets(s.ports[i], key) })
		}
		found := false
		for ; !found && i < len(s.byTarget) && compareTargets(s.ports[s.byTarget[i]], key) == 0; i++ {
			if now := s.ports[s.byTarget[i]]; !hasPort(named, now) {
				found = true
				m.rename(now, p)
			}
		}
		if next[key] = i; !found {
			others = append(others, p)
		}
	}
	slices.SortFunc(m.ports, comparePortKeys)
	return others
}

// rename adds a port of a slice as a port of the Service.
func (m *matchedSlice) rename(now, p Port) {
	m.renamed = append(m.renamed, PortRename{now, p.Name})
	m.ports = append(m.ports, Port{Name: now.Name, Protocol: p.Protocol, Port: p.Port})
}

// hasPort searches sorted ports.
func hasPort(sorted []Port, p Port) bool {
	_, has := slices.BinarySearchFunc(sorted, p, comparePortKeys)
	return has
}
