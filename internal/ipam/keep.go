package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// keep lets Services keep what they hold. Of conflicting claims the better wins, and of
// equal claims the older Service's.
func (p *plan) keep() {
	for _, h := range p.services {
		slices.SortFunc(h.claims, func(a, b claim) int { return a.addr.Compare(b.addr) })
	}
	for _, better := range []struct{ fits, written bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		for _, h := range p.services {
			for _, c := range h.claims {
				if c.fits == better.fits && c.written == better.written {
					p.keepOne(h, c)
				}
			}
		}
	}
}

// keepOne lets h keep the address of claim c, unless another Service has it by now or h has another
// address of the family. Only a status that is overruled is reported: users can see it.
func (p *plan) keepOne(h *service, c claim) {
	family := cluster.FamilyOf(c.addr)
	other := p.owner(c.addr, h)
	switch {
	case !slices.Contains(h.IPFamilies, family):
		// It no longer wants it.
	case slices.Contains(h.addrs, c.addr):
		// Claimed by status and by memory.
	case other != nil && c.written && p.claimed(c.addr, other.Name):
		// The conflict is resolved, so h gets another address.
		p.refuse(h, cluster.AddressConflict, "the status said %s, which %s has claimed", c.addr, other.Name)
	case other != nil && c.written:
		h.exclude(family)
		p.refuse(h, cluster.AddressConflict, "the status says %s, which %s holds: remove it from one of the two",
			c.addr, other.Name)
	case other != nil || h.has(family) && !(c.written && c.fits):
		// Its own status differs, or another Service's does.
	default:
		p.take(h, c.addr)
	}
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
		return cluster.AddressInUse, fmt.Sprintf("node %s reports that %s answers for it on %s; %s", c.Node, c.MAC,
			c.Interface, p.conflictRemedy(h, c))
	}
	if !h.suits(pool) && p.cameFrom(h, a) {
		return cluster.PoolGone, fmt.Sprintf(
			"pool %s, which allocated it and which the Service names, does not contain it now, but pool %s does",
			p.origin(h, a), pool.Name)
	}
	return "", ""
}

// warnShared warns Services that share an address but would not be allowed to now.
func (p *plan) warnShared() {
	for _, h := range p.services {
		for _, a := range h.addrs {
			if c := p.Snap.Claim(a); len(p.taken[a]) == 1 &&
				(c == nil || len(c.Holders) == 1 && c.Holders[0].Name == h.Name) || Settled(p.Snap, h.Spec) {
				continue
			}
			for _, o := range p.with(a, h) {
				if why, is := Apart(h.Spec, o); is {
					p.addReason(h, a, cluster.SharingKept,
						"%s is shared with %s as it was, although it would not be now: %s", a, o.Name,
						cmp.Or(why, "neither asks for it"))
				}
			}
		}
	}
}
