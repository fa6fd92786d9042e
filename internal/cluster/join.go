package cluster

// How the EndpointSlices of a Service become its Endpoints.

import (
	"iter"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// maxExamples is how many ports or endpoints that are not used are kept, for Reasons.
const maxExamples = 5

// maxTargets is how many endpoints all ports of a Service may have together: more than a kernel can
// have entries for one address.
const maxTargets = 1 << 20

// A joiner keeps the EndpointSlices, and joins those of each Service that Fanfare serves.
type joiner struct {
	slices    map[Name]*slice        // by the slice's own name
	byService map[Name][]*slice      // in no order; nearly always one
	ports     map[Name]*servicePorts // of the Services that Fanfare serves
	endpoints map[Name]*Endpoints    // joined
	pooled    *netipx.IPSet          // addresses for Services
	joins     map[Name]struct{}      // Services whose slices changed since the last snapshot
}

func newJoiner() joiner {
	return joiner{slices: map[Name]*slice{}, byService: map[Name][]*slice{}, ports: map[Name]*servicePorts{},
		endpoints: map[Name]*Endpoints{}, joins: map[Name]struct{}{}}
}

// setPorts rejoins the slices of a Service if its ports differ.
func (j *joiner) setPorts(name Name, s *Spec) {
	old := j.ports[name]
	switch {
	case s == nil:
		delete(j.ports, name)
	case old != nil && slices.Equal(old.ports, s.Ports):
		s.Ports = old.ports // one copy
		return
	default:
		j.ports[name] = newServicePorts(s.Ports)
	}
	j.joins[name] = struct{}{}
}

// setSlice replaces a slice, or deletes it if s is nil, and reports whether that is a change.
func (j *joiner) setSlice(name Name, s *slice) bool {
	old := j.slices[name]
	if !replaceFunc(j.slices, name, s, (*slice).equal) {
		return false
	}
	if old != nil {
		parts := slices.DeleteFunc(j.byService[old.service], func(part *slice) bool { return part == old })
		if j.byService[old.service] = parts; len(parts) == 0 {
			delete(j.byService, old.service)
		}
		j.rejoin(old.service)
	}
	if s != nil {
		j.byService[s.service] = append(j.byService[s.service], s)
		j.rejoin(s.service)
	}
	return true
}

// rejoin records that the slices of a Service have changed, if Fanfare serves it. In most clusters
// Fanfare serves few Services, and the endpoints of others must not notify readers.
func (j *joiner) rejoin(service Name) {
	if j.ports[service] != nil {
		j.joins[service] = struct{}{}
	}
}

// joinChanged joins the slices of the Services whose slices have changed, and adds to touched those whose
// endpoints differ. claimed reports whether an address has a claim.
func (j *joiner) joinChanged(touched map[Name]struct{}, claimed func(netip.Addr) bool) {
	for name := range j.joins {
		if j.ports[name] == nil {
			delete(j.endpoints, name)
			continue
		}
		if replaceFunc(j.endpoints, name, j.join(name, claimed), (*Endpoints).equal) {
			touched[name] = struct{}{}
		}
	}
	j.joins = emptied(j.joins)
}

// join merges the slices of a Service.
func (j *joiner) join(name Name, claimed func(netip.Addr) bool) *Endpoints {
	parts := j.matched(name)
	if len(parts) == 0 {
		return nil
	}
	e := &Endpoints{}
	var lists [][][]Endpoint // by the subset
	index := map[uint64]int{}
	for _, s := range parts {
		e.HostNames = e.HostNames || s.hostNames
		e.Others, e.Renamed = append(e.Others, s.matched.others...), append(e.Renamed, s.matched.renamed...)
		if len(s.ports) == 0 {
			continue // no port can refer to its endpoints
		}
		i, known := index[s.matched.hash]
		if !known {
			i, index[s.matched.hash] = len(lists), len(lists)
			e.Subsets, lists = append(e.Subsets, Subset{Ports: s.matched.ports}), append(lists, nil)
		}
		lists[i] = append(lists[i], s.list)
		e.Targets += len(s.matched.ports) * len(s.list)
	}
	if e.Targets > maxTargets {
		return &Endpoints{Targets: e.Targets}
	}
	for i, list := range lists {
		e.Subsets[i].List = merged(list)
	}
	e.compact()
	// If an address's pool is gone, the claim shows that it is for Services; only addresses of pools get new claims.
	e.refuse(func(a netip.Addr) bool { return j.pooled != nil && j.pooled.Contains(a) || claimed(a) })
	return e
}

// matched returns the slices of a Service, by name, with their ports matched. It matches only slices
// that have changed, unless the Service's ports have.
func (j *joiner) matched(name Name) []*slice {
	parts, ports := j.byService[name], j.ports[name]
	slices.SortFunc(parts, func(a, b *slice) int { return a.name.Compare(b.name) })
	for _, s := range parts {
		if s.matched.with != ports {
			s.matched = ports.match(s.ports, s.managed)
		}
	}
	return parts
}

// merged returns the endpoints of several slices with the same ports.
func merged(lists [][]Endpoint) []Endpoint {
	if len(lists) == 1 {
		return lists[0]
	}
	return compactEndpoints(slices.Concat(lists...))
}

// compact sorts and bounds the examples.
func (e *Endpoints) compact() {
	slices.SortFunc(e.Others, comparePorts)
	e.Others = slices.Compact(e.Others)
	e.Others = slices.Clip(e.Others[:min(len(e.Others), maxExamples)])
	slices.SortFunc(e.Renamed, func(a, b PortRename) int { return comparePorts(a.Port, b.Port) })
	e.Renamed = slices.Compact(e.Renamed)
	e.Renamed = slices.Clip(e.Renamed[:min(len(e.Renamed), maxExamples)])
}

// refuse removes endpoints with addresses for Services: two Services with each other's address as
// endpoint would forward a packet again and again, until its hop limit is used up.
func (e *Endpoints) refuse(reserved func(netip.Addr) bool) {
	for i := range e.Subsets {
		list := e.Subsets[i].List
		e.Subsets[i].List = FilterEndpoints(list, func(p *Endpoint) bool { return !reserved(p.Addr) })
		if len(e.Subsets[i].List) == len(list) {
			continue
		}
		for j := range list {
			if reserved(list[j].Addr) {
				e.Refused = append(e.Refused, list[j].Addr)
			}
		}
	}
	slices.SortFunc(e.Refused, netip.Addr.Compare)
	e.Refused = slices.Compact(e.Refused)
	e.Refused = slices.Clip(e.Refused[:min(len(e.Refused), maxExamples)])
}

// pooledAddresses returns the addresses of pools, without addresses of nodes, pods and routers: a
// pool may contain them by mistake.
func pooledAddresses(pools []*Pool) *netipx.IPSet {
	var set netipx.IPSetBuilder
	for _, p := range pools {
		for _, r := range p.Ranges {
			set.AddRange(r)
		}
	}
	for _, p := range pools {
		for _, o := range p.Occupied {
			if !o.Foreign {
				set.RemoveRange(o.Range)
			}
		}
	}
	all, _ := set.IPSet() // its ranges are valid
	return all
}

// setPooled rejoins Services if pools contain other endpoints of them than before.
func (j *joiner) setPooled(pools []*Pool) {
	was := j.pooled
	if j.pooled = pooledAddresses(pools); was != nil && was.Equal(j.pooled) {
		return
	}
	contains := func(set *netipx.IPSet, a netip.Addr) bool { return set != nil && set.Contains(a) }
	for name := range j.ports {
		if slices.ContainsFunc(j.byService[name], func(s *slice) bool {
			return slices.ContainsFunc(s.list, func(e Endpoint) bool {
				return contains(was, e.Addr) != j.pooled.Contains(e.Addr)
			})
		}) {
			j.joins[name] = struct{}{}
		}
	}
}

func (e *Endpoints) equal(o *Endpoints) bool {
	return e.Targets == o.Targets && e.HostNames == o.HostNames && slices.Equal(e.Others, o.Others) &&
		slices.Equal(e.Renamed, o.Renamed) && slices.Equal(e.Refused, o.Refused) &&
		slices.EqualFunc(e.Subsets, o.Subsets,
			func(a, b Subset) bool { return slices.Equal(a.Ports, b.Ports) && slices.Equal(a.List, b.List) })
}

// All returns the endpoints of all subsets, in their order. e may be nil.
func (e *Endpoints) All() iter.Seq[*Endpoint] {
	return func(yield func(*Endpoint) bool) {
		e.Any(func(p *Endpoint) bool { return !yield(p) })
	}
}

// Any reports whether any endpoint satisfies is. e may be nil.
func (e *Endpoints) Any(is func(*Endpoint) bool) bool {
	for i := range e.subsets() {
		for j := range e.Subsets[i].List {
			if is(&e.Subsets[i].List[j]) {
				return true
			}
		}
	}
	return false
}

// Has reports whether the slices have a port of the Service, with endpoints or without.
func (e *Endpoints) Has(p Port) bool {
	return slices.ContainsFunc(e.subsets(), func(s Subset) bool {
		_, has := slices.BinarySearchFunc(s.Ports, p, comparePortKeys)
		return has
	})
}

func (e *Endpoints) subsets() []Subset {
	if e == nil {
		return nil
	}
	return e.Subsets
}
