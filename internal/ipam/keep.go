package ipam

import (
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
		p.refuse(h, cluster.AddressConflict, "the status says %s, which %s holds: remove it from one of the two", c.addr, other.Name)
	case other != nil || h.has(family) && !(c.written && c.fits):
		// Its own status differs, or another Service's does.
	default:
		p.take(h, c.addr)
	}
}
