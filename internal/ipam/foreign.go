package ipam

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// leaveForeign leaves alone the Services that have addresses of another implementation, and no
// Claim: two implementations cannot both write one status. Addresses that another controller wrote
// and that are in pools are occupied, unless a Claim says whose they are: no Service gets them, and
// a Service that has one keeps it.
func (p *plan) leaveForeign() {
	var theirs []cluster.Occupied
	p.services = slices.DeleteFunc(p.services, func(h *service) bool {
		var foreign []netip.Addr
		leave := false
		if h.proves() {
			foreign = p.ignoreForeign(h)
		} else if leave = p.foreign(h); leave {
			foreign = h.Status
		}
		for _, a := range foreign {
			if len(p.claimHoldersOf(a).holders) == 0 {
				theirs = append(theirs, cluster.Occupied{
					Range: netipx.IPRangeFrom(a, a), By: "Service " + h.Name.String() + " of another implementation",
					Foreign: true,
				})
			}
		}
		return leave
	})
	if len(theirs) == 0 {
		return
	}
	for _, pool := range p.pools {
		pool.occupy(theirs)
	}
}

// proves reports whether a Claim proves that h owns an address.
func (s *service) proves() bool {
	return slices.ContainsFunc(s.claims, func(c claim) bool { return c.proven })
}

// ignoreForeign drops and returns the addresses that another controller wrote into the status of h,
// which owns other addresses by Claims, and says so. The Claims decide: a controller that serves all
// Services without a class, such as k3s's ServiceLB, would otherwise take their addresses away.
func (p *plan) ignoreForeign(h *service) (theirs []netip.Addr) {
	for _, c := range h.claims {
		if p.alien(h, c) {
			theirs = append(theirs, c.addr)
		}
	}
	h.claims = slices.DeleteFunc(h.claims, func(c claim) bool { return slices.Contains(theirs, c.addr) })
	if what := h.foreignChange(theirs); what != "" {
		p.refuse(h, cluster.StatusOverwritten,
			"another controller %s; the AddressClaim keeps the Service's address: switch that controller "+
				"off for this Service%s", what, h.classRemedy())
	}
	return theirs
}

// alien reports whether another controller wrote the address of c into the status of h, which owns
// an address: no pool contains it, or a Claim proves another one of its family. An unclaimed address
// that h requests is for h in any case.
func (p *plan) alien(h *service, c claim) bool {
	if !c.written || c.proven {
		return false
	}
	return c.pool == nil || (p.Snap.Claim(c.addr) != nil || !asked(p.Snap.Pools, h.Spec, c.addr)) &&
		slices.ContainsFunc(h.claims, func(o claim) bool { return o.proven && o.addr.Is4() == c.addr.Is4() })
}

// foreignChange says what another controller has done to the status of h, to which it wrote these
// addresses; empty for nothing. The API server also empties a status, when the type changes, so that
// alone does not count.
func (s *service) foreignChange(theirs []netip.Addr) string {
	var wrote []string
	for _, a := range theirs {
		wrote = append(wrote, a.String())
	}
	if s.StatusHost != "" {
		wrote = append(wrote, "host name "+s.StatusHost)
	}
	if s.StatusProxied {
		wrote = append(wrote, "ipMode Proxy")
	}
	if len(wrote) == 0 {
		return ""
	}
	return "wrote " + cluster.Enumerate(wrote) + " into status.loadBalancer"
}

// classRemedy ends the remedy for h: other controllers leave a Service with a class alone, and the
// API server allows none to be added.
func (s *service) classRemedy() string {
	if s.Class != "" {
		return ", whose spec.loadBalancerClass it ignores"
	}
	return ", or create the Service again with spec.loadBalancerClass: " + cluster.Class
}

// foreign reports whether another implementation allocated h's addresses, and gives the
// reason.
func (p *plan) foreign(h *service) (is bool) {
	if h.StatusHost != "" {
		p.refuse(h, cluster.NotOurs, "the status says %s, which is a host name, so another implementation allocated "+
			"it: to get an address from Fanfare, remove the status", h.StatusHost)
		return true
	}
	for _, c := range h.claims {
		if c.pool != nil || c.ours || !slices.Contains(h.IPFamilies, cluster.FamilyOf(c.addr)) || h.remembers(c.addr) {
			continue
		}
		p.refuse(h, cluster.NotOurs, "the status says %s, which is in no pool, so another implementation allocated "+
			"it: to get an address from Fanfare, remove the status, or add %s to a pool; %s",
			c.addr, c.addr, p.describePools())
		is = true
	}
	return is
}

// remembers reports whether Fanfare allocated address a to h.
func (s *service) remembers(a netip.Addr) bool {
	return slices.ContainsFunc(s.claims, func(c claim) bool { return c.addr == a && c.ours })
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
		at, _ := slices.BinarySearchFunc(next.Occupied, a,
			func(o cluster.Occupied, a netip.Addr) int { return o.Range.From().Compare(a) })
		next.Occupied = slices.Insert(next.Occupied, at, o)
	}
	if len(next.Occupied) > len(p.Occupied) {
		p.Pool, p.v4, p.v6 = &next, newSpace(&next, true), newSpace(&next, false)
	}
}
