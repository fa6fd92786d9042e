package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// excludes says why h may not have an address of the pool, as the end of a sentence; empty if
// it may.
func (p *plan) excludes(h *service, pool *pool) string {
	return pool.Excludes(h.Spec, p.Snap.Namespaces)
}

// admit selects the pools that admit h, and says why the others do not.
func (p *plan) admit(h *service, pools []*pool) (open []*pool, why string) {
	var not []string
	for _, pool := range pools {
		if bar := p.excludes(h, pool); bar != "" {
			not = append(not, fmt.Sprintf("pool %s %s", pool.Name, bar))
			continue
		}
		open = append(open, pool)
	}
	return open, strings.Join(not, "; ")
}

// is reports whether h is the Service that by names, and not a later Service of the same
// name.
func (s *service) is(by cluster.Holder) bool { return by.UID == "" || s.UID == "" || by.UID == s.UID }

// inherits reports whether h may have address a because an earlier Service of its name had
// it. The new Service may have other labels, so admission is checked, and whether a node
// has the address by now.
func (p *plan) inherits(h *service, a netip.Addr) bool {
	pool := p.poolOf(a)
	return pool == nil || p.excludes(h, pool) == "" && pool.OccupiedBy(a) == ""
}

// reportKept reports addresses that Services keep although they would not get them now.
// They continue to work: only a user decides to take one away.
func (p *plan) reportKept() {
	for _, h := range p.services {
		for _, a := range h.addrs {
			if code, why := p.keptReason(h, a); why != "" {
				p.addReason(h, a, code, "%s is kept, although %s", a, why)
			}
		}
	}
}

// keptReason says why h would not get its address a now.
func (p *plan) keptReason(h *service, a netip.Addr) (cluster.Code, string) {
	pool := p.poolOf(a)
	if pool == nil {
		return cluster.PoolGone, "no pool contains it now; " + p.describePools()
	}
	if bar := p.excludes(h, pool); bar != "" {
		return cluster.PoolExcludesService, fmt.Sprintf("pool %s %s", pool.Name, bar)
	}
	if by := pool.OccupiedBy(a); by != "" {
		return cluster.AddressConflict, fmt.Sprintf("it belongs to %s; change one of the two", by)
	}
	if c, is := p.conflict(pool, a); is {
		return cluster.AddressInUse, fmt.Sprintf("node %s reports that %s answers for it on %s; %s", c.Node, c.MAC, c.Interface, p.conflictRemedy(h, c))
	}
	if !p.suits(h, pool) && p.cameFrom(h, a) {
		return cluster.PoolGone, fmt.Sprintf("pool %s, which allocated it and which the Service names, does not contain it now, but pool %s does", p.origin(h, a), pool.Name)
	}
	return "", ""
}

// cameFrom reports whether h has address a from the pool that it names: the pool contains
// it, or did when it was allocated. A shrinking pool moves no Service.
func (p *plan) cameFrom(h *service, a netip.Addr) bool {
	pool, origin := p.poolOf(a), p.origin(h, a)
	return p.suits(h, pool) || slices.Contains(h.RequestedPools, origin) || origin == "" && pool == nil
}

// origin is the pool that h's address a was allocated from, empty if unknown.
func (p *plan) origin(h *service, a netip.Addr) string {
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
func (p *plan) from(h *service, a netip.Addr) cluster.Origin {
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
	return (len(s.RequestedPools) == 0 || slices.Contains(s.RequestedPools, pool.Name)) && pool.OccupiedBy(a) == "" && pool.Excludes(s, snap.Namespaces) == ""
}
