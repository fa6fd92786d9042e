package ipam

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// excludes says why h may not have an address of the pool, as the end of a sentence; empty if
// it may.
func (p *holdings) excludes(h *service, pool *pool) string {
	return pool.Excludes(h.Spec, p.Snap.Namespaces)
}

// is reports whether h is the Service that by names, and not a later Service of the same
// name.
func (s *service) is(by cluster.Holder) bool { return by.UID == "" || s.UID == "" || by.UID == s.UID }

// inherits reports whether h may have address a because an earlier Service of its name had
// it. The new Service may have other labels, so admission is checked, and whether a node
// has the address by now.
func (p *holdings) inherits(h *service, a netip.Addr) bool {
	pool := p.poolOf(a)
	return pool == nil || p.excludes(h, pool) == "" && pool.OccupiedBy(a) == ""
}

// cameFrom reports whether h has address a from the pool that it names: the pool contains
// it, or did when it was allocated. A shrinking pool moves no Service.
func (p *holdings) cameFrom(h *service, a netip.Addr) bool {
	pool, origin := p.poolOf(a), p.origin(h, a)
	return h.suits(pool) || slices.Contains(h.RequestedPools, origin) || origin == "" && pool == nil
}

// origin is the pool that h's address a was allocated from, empty if unknown.
func (p *holdings) origin(h *service, a netip.Addr) string {
	if c := p.Snap.Claim(a); c != nil && p.claimed(a, h.Name) {
		return c.Pool
	}
	i := slices.IndexFunc(h.claims, func(c claim) bool { return c.addr == a && c.origin != "" })
	if i < 0 {
		return ""
	}
	return h.claims[i].origin
}

// from is how the pool that has lost h's address a announced it, by the address's Claim or
// an earlier assignment.
func (p *holdings) from(h *service, a netip.Addr) cluster.Origin {
	if c := p.Snap.Claim(a); c != nil {
		return cluster.Origin{Pool: c.Pool, Announce: c.Announce}
	}
	for _, c := range h.claims {
		if c.addr == a && c.from != (cluster.Origin{}) {
			return c.from
		}
	}
	return cluster.Origin{}
}

// due reports whether the Service would get address a from snap's pools.
func due(snap *cluster.Snapshot, s *cluster.Spec, a netip.Addr) bool {
	i := slices.IndexFunc(snap.Pools, func(p *cluster.Pool) bool { return p.Contains(a) })
	if i < 0 {
		return false
	}
	pool := snap.Pools[i]
	return (len(s.RequestedPools) == 0 || slices.Contains(s.RequestedPools, pool.Name)) && pool.OccupiedBy(a) == "" &&
		pool.Excludes(s, snap.Namespaces) == ""
}
