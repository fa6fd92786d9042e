package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// holdings are who has which address, and what says so: the input of each decision, and its result.
type holdings struct {
	*Allocator
	byName map[cluster.Name]*service // that are not settled
	pools  []*pool                   // by priority
	taken  map[netip.Addr][]*service // more than one where they share
	byKey  map[string][]*cluster.Spec
	usage  usage
}

// A claimHolders is the Claim of an address: the address is taken, whatever a status says.
type claimHolders struct {
	holders []cluster.Name // that exist
	// gone is a holder that no longer exists, but whose Claim is not released yet.
	gone     *cluster.Name
	reserved bool
	kept     []cluster.Name // see Claim.ReservedFor
}

// claimHoldersOf returns the Claim of an address; empty if there is none.
func (p *holdings) claimHoldersOf(a netip.Addr) (f claimHolders) {
	c := p.Snap.Claim(a)
	if c == nil {
		return f
	}
	f.reserved, f.kept = c.Reserved || len(c.ReservedFor) != 0, c.ReservedFor
	for i, h := range c.Holders {
		if p.Snap.Service(h.Name) == nil {
			f.gone = &c.Holders[i].Name
			continue
		}
		f.holders = append(f.holders, h.Name)
	}
	return f
}

// claimed reports whether name is a holder of the Claim of a.
func (p *holdings) claimed(a netip.Addr, name cluster.Name) bool {
	return slices.Contains(p.claimHoldersOf(a).holders, name)
}

// free reports whether h may get address a without requesting it.
func (p *holdings) free(a netip.Addr, h *service) bool {
	f := p.claimHoldersOf(a)
	return p.owner(a, h) == nil && f.gone == nil && (!f.reserved || len(f.holders) != 0)
}

// poolOf returns the pool that contains address a, nil if none does.
func (p *holdings) poolOf(a netip.Addr) *pool {
	for _, pool := range p.pools {
		if pool.Contains(a) {
			return pool
		}
	}
	return nil
}

// take gives h address a. The caller has checked that h may have it.
func (p *holdings) take(h *service, a netip.Addr) {
	p.taken[a] = append(p.taken[a], h)
	h.addrs = append(h.addrs, a)
	p.count(h.Name, a, 1)
}

// release takes address a from h. Pools that were full may have a free address then.
func (p *holdings) release(h *service, a netip.Addr) {
	if p.taken[a] = slices.DeleteFunc(p.taken[a], func(o *service) bool { return o == h }); len(p.taken[a]) == 0 {
		delete(p.taken, a)
	}
	p.count(h.Name, a, -1)
	h.addrs = slices.DeleteFunc(h.addrs, func(b netip.Addr) bool { return a == b })
	for _, pool := range p.pools {
		clear(pool.full)
		clear(pool.whyFull)
	}
}

// replace gives h address a instead of its other address of the family.
func (p *holdings) replace(h *service, a netip.Addr) {
	for _, old := range slices.Clone(h.addrs) {
		if cluster.FamilyOf(old) == cluster.FamilyOf(a) {
			p.release(h, old)
		}
	}
	p.take(h, a)
}

// describePools lists the pools for messages.
func (p *holdings) describePools() string {
	if len(p.pools) == 0 {
		return "there is no pool: add an AddressPool"
	}
	var s []string
	for _, pool := range p.pools {
		s = append(s, fmt.Sprintf("%s (%s, %s)", pool.Name, pool.Allocation, describeRanges(pool.Pool)))
	}
	return "pools are " + strings.Join(s, "; ")
}

// describeRanges lists the first ranges of a pool.
func describeRanges(p *cluster.Pool) string {
	const most = 3
	switch ranges := p.Ranges; {
	case len(ranges) == 0:
		var lost []string
		for _, r := range p.Lost[:min(len(p.Lost), most)] {
			lost = append(lost, rangeText(r))
		}
		return "no addresses: older pools have " + strings.Join(lost, ", ")
	case len(ranges) > most:
		return join(ranges[:most]) + ", …"
	default:
		return join(ranges)
	}
}

// join lists values for a message.
func join[T any](list []T) string {
	var s []string
	for _, v := range list {
		s = append(s, fmt.Sprint(v))
	}
	return strings.Join(s, ", ")
}
