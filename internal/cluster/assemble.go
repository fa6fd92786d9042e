package cluster

// How a Builder makes a Snapshot: only changes since the last one create new values.

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// Snapshot returns the snapshot of all objects that were set and not deleted. If nothing has
// changed, it returns the previous pointer.
func (b *Builder) Snapshot() *Snapshot {
	s := *b.last
	if b.pools.changed || b.peers.changed || b.networksChanged() || b.foreignChanged {
		s.Pools = b.admitted()
		b.joiner.setPooled(s.Pools)
	}
	touched := b.touched()
	if len(touched) == 0 && !b.Dirty() {
		return b.last
	}
	if len(touched) != 0 {
		s.Services = s.Services.Patch(touched, b.service)
	}
	s.Nodes, s.Namespaces, s.ServiceCIDRs, s.Speakers = b.nodes.sorted(), b.namespaces.sorted(),
		b.serviceCIDRs.sorted(), b.speakers.sorted()
	if b.speakers.changed {
		s.Conflicts = conflicts(s.Speakers)
	}
	s.Advertisements, s.L2Advertisements = b.adverts.sorted(), b.l2adverts.sorted()
	if b.peers.changed || b.nodeLabels && b.scope.SecretsOf != "" {
		s.Peers = b.signedPeers()
	}
	s.L2Ready, s.AllNodes = !b.scope.L2Pending, !b.scope.SomeNodes
	if b.versionsChanged {
		s.Versions = slices.SortedFunc(maps.Values(b.versions), Version.compare)
	}
	if b.goodChanged {
		s.Configuration = newConfiguration(b.good)
	}
	b.relate(&s)
	if len(b.claimed) != 0 {
		s.Claims = s.Claims.Patch(slices.SortedFunc(maps.Keys(b.claimed), netip.Addr.Compare), b.claim)
	}
	s.Assignments = b.assignments(&s)
	s.Problems = b.sorted(b.last.Problems)
	if b.scope.Unserved {
		s.Unserved = b.unservedObjects()
	}
	b.setPrevious(&s)
	return &s
}

// networksChanged reports whether addresses of nodes, pods or the cluster's own Services have
// changed.
func (b *Builder) networksChanged() bool { return b.nodeAddresses || b.serviceCIDRs.changed }

// relate reports Problems between the objects of s, if any of them has changed.
func (b *Builder) relate(s *Snapshot) {
	if b.scope.NoAdvertisements {
		return
	}
	changed := b.adverts.changed || b.pools.changed || b.peers.changed
	if changed || b.l2adverts.changed || b.nodeLabels || b.versionsChanged || b.l2Read {
		b.Report("references", references(s))
	}
	if changed || b.networksChanged() {
		s.Occupied = b.occupied()
		b.Report("aggregates", aggregates(s, s.Occupied))
	}
}

// admitted returns the pools, without addresses that they may not give out. An unchanged pool keeps
// its pointer.
func (b *Builder) admitted() []*Pool {
	pools, overlaps := admit(b.pools.objects, b.poolFiles)
	b.Report("overlapping pools", overlaps)
	pools, conflicts := occupy(pools, b.poolFiles, b.taken())
	b.Report("pools with the cluster's own addresses", conflicts)
	for i, p := range pools {
		if j := slices.IndexFunc(b.last.Pools, func(q *Pool) bool { return q.Name == p.Name }); j >= 0 &&
			reflect.DeepEqual(p, b.last.Pools[j]) {
			pools[i] = b.last.Pools[j]
		}
	}
	if slices.Equal(pools, b.last.Pools) {
		return b.last.Pools
	}
	b.pools.changed = true // also if another pool's addresses have changed
	return pools
}

// touched returns the names of the Services that have changed, or whose endpoints have, sorted.
func (b *Builder) touched() []Name {
	touched := make(map[Name]struct{}, len(b.changed)+len(b.joiner.joins))
	for name := range b.changed {
		touched[name] = struct{}{}
	}
	b.joiner.joinChanged(touched, func(a netip.Addr) bool { return b.claims[v1alpha1.ClaimName(a)] != nil })
	return slices.SortedFunc(maps.Keys(touched), Name.Compare)
}

func (b *Builder) service(name Name) (Service, bool) {
	spec := b.services[name]
	return Service{spec, b.joiner.endpoints[name]}, spec != nil
}

func (b *Builder) claim(a netip.Addr) (*Claim, bool) {
	c, ok := b.claims[v1alpha1.ClaimName(a)]
	return c, ok
}

// assignments returns the addresses in the status of the Services in s. It recomputes only the
// entries of changed Services, unless the pools have changed.
func (b *Builder) assignments(s *Snapshot) Assignments {
	if b.pools.changed {
		var all []Assignment
		for svc := range s.Services.All() {
			for _, a := range svc.Status {
				all = append(all, b.assignment(s.Pools, a, svc.Name))
			}
		}
		return s.Assignments.Keep(AssignmentSet(all...))
	}
	return s.Assignments.Patch(b.statusChanged(), func(a Assignment) (Assignment, bool) {
		return b.assignment(s.Pools, a.Addr, a.Service), slices.Contains(b.services[a.Service].status(), a.Addr)
	})
}

// statusChanged returns the assignments that were added or removed, and others of the same
// addresses, sorted and without pools.
func (b *Builder) statusChanged() (touched []Assignment) {
	for name, old := range b.changed {
		was, is := old.status(), b.services[name].status()
		if slices.Equal(was, is) {
			continue
		}
		for _, a := range slices.Concat(was, is) {
			touched = append(touched, Assignment{Addr: a, Service: name})
		}
	}
	for a := range b.claimed {
		touched = append(touched, b.orphans(a)...)
	}
	slices.SortFunc(touched, Assignment.Compare)
	return slices.Compact(touched)
}

// orphans returns the last snapshot's assignments of an address that no pool contains.
func (b *Builder) orphans(a netip.Addr) (list []Assignment) {
	for _, x := range b.last.AssignmentsOf(a) {
		if x.Pool == "" {
			list = append(list, Assignment{Addr: a, Service: x.Service})
		}
	}
	return list
}

// assignment returns the Assignment of an address in a Service's status. If no pool contains the
// address, its claim has its origin.
func (b *Builder) assignment(pools []*Pool, a netip.Addr, service Name) Assignment {
	out := Assignment{Addr: a, Service: service, Pool: PoolOf(pools, a)}
	if c, ok := b.claim(a); ok && out.Pool == "" {
		out.From = Origin{c.Pool, c.Announce}
	}
	return out
}

// setPrevious makes s the snapshot to compare the next one with.
func (b *Builder) setPrevious(s *Snapshot) {
	b.last = s
	b.changed, b.claimed, b.former = emptied(b.changed), emptied(b.claimed), emptied(b.former)
	b.changes, b.goodChanged = changes{}, false
	for _, changed := range b.tables() {
		*changed = false
	}
}

// emptied returns m without its content. Maps never shrink, so a map that contained a whole list is
// left to the garbage collector.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > 100 {
		return map[K]V{}
	}
	clear(m)
	return m
}
