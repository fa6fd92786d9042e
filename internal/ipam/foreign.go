package ipam

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// leaveForeign leaves alone the Services that have addresses of another implementation: two
// implementations cannot both write one status. Their addresses in pools are occupied, unless a
// Claim says whose they are: no Service gets them, and a Service that has one keeps it.
func (p *plan) leaveForeign() {
	var theirs []cluster.Occupied
	p.services = slices.DeleteFunc(p.services, func(h *service) bool {
		if !p.foreign(h) {
			return false
		}
		for _, a := range h.Status {
			if len(p.claimHoldersOf(a).holders) != 0 {
				continue
			}
			theirs = append(theirs, cluster.Occupied{Range: netipx.IPRangeFrom(a, a), By: "Service " + h.Name.String() + " of another implementation", Foreign: true})
		}
		return true
	})
	if len(theirs) == 0 {
		return
	}
	for _, pool := range p.pools {
		pool.occupy(theirs)
	}
}

// foreign reports whether another implementation allocated h's addresses, and gives the
// reason.
func (p *plan) foreign(h *service) (is bool) {
	if h.StatusHost != "" {
		p.refuse(h, cluster.NotOurs, "the status says %s, which is a host name, so another implementation allocated it: to get an address from Fanfare, remove the status", h.StatusHost)
		return true
	}
	for _, c := range h.claims {
		if c.pool != nil || c.ours || !slices.Contains(h.IPFamilies, cluster.FamilyOf(c.addr)) || h.remembers(c.addr) {
			continue
		}
		p.refuse(h, cluster.NotOurs, "the status says %s, which is in no pool, so another implementation allocated it: to get an address from Fanfare, remove the status, or add %s to a pool; %s",
			c.addr, c.addr, p.describePools())
		is = true
	}
	return is
}

// remembers reports whether Fanfare allocated address a to h.
func (h *service) remembers(a netip.Addr) bool {
	return slices.ContainsFunc(h.claims, func(c claim) bool { return c.addr == a && c.ours })
}

// occupy adds addresses to what is occupied of a pool.
func (p *pool) occupy(all []cluster.Occupied) {
	next := *p.Pool
	next.Occupied = slices.Clone(p.Occupied)
	for _, o := range all {
		a := o.Range.From()
		if !p.Contains(a) || next.OccupiedBy(a) != "" {
			continue
		}
		at, _ := slices.BinarySearchFunc(next.Occupied, a, func(o cluster.Occupied, a netip.Addr) int { return o.Range.From().Compare(a) })
		next.Occupied = slices.Insert(next.Occupied, at, o)
	}
	if len(next.Occupied) > len(p.Occupied) {
		p.Pool, p.v4, p.v6 = &next, newSpace(&next, true), newSpace(&next, false)
	}
}
