package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const (
	// maxReplaced is how many addresses in a row a Service loses because other hosts use them. So a
	// host that answers for every address cannot use up a pool.
	maxReplaced = 3
	// replaceWithin is the maximum age of a Claim whose address is replaced: a node probes within
	// seconds. An older address may be in use, regardless of reports.
	replaceWithin = 2 * time.Minute
)

// conflict returns the report of a node about another host that uses a. It counts only if the pool
// may announce over Layer 2.
func (p *holdings) conflict(pool *pool, a netip.Addr) (cluster.Conflict, bool) {
	c, reported := p.Snap.Conflict(a)
	return c, reported && pool.Announce != cluster.AnnounceBGP
}

// replaceConflicting replaces each new address of h that another host uses, if there is a free
// address that no host is reported to use.
func (p *plan) replaceConflicting(h *service) {
	for _, a := range slices.Clone(h.addrs) {
		pool := p.poolOf(a)
		if pool == nil {
			continue
		}
		if c, is := p.conflict(pool, a); is && p.whyKept(h, c) == "" {
			p.replaceOne(h, c)
		}
	}
}

// replaceOne replaces the address of c, if another one is free.
func (p *plan) replaceOne(h *service, c cluster.Conflict) {
	p.release(h, c.Addr) // first: the Service may have used up its namespace's quota
	b, _, why := search{p.holdings, h, cluster.FamilyOf(c.Addr)}.find()
	if why != "" || !p.conflictFree(p.poolOf(b), b) {
		p.take(h, c.Addr)
		return
	}
	p.take(h, b)
	p.addReason(h, b, cluster.AddressInUse, "%s replaces %s: node %s reports that %s answers for that on %s", b, c.Addr,
		c.Node, c.MAC, c.Interface)
}

// whyKept returns why h keeps an address although another host uses it; empty if it may lose it.
func (p *plan) whyKept(h *service, c cluster.Conflict) string {
	claim := p.Snap.Claim(c.Addr)
	switch {
	case h.Deleting:
		return "the Service is being deleted"
	case len(h.Requested) != 0:
		return "the Service requests it"
	case h.Sharing != nil || h.Reserve:
		return "the Service shares or reserves its address"
	case c.Held:
		return "a node has answered for it before"
	case claim == nil || len(claim.Holders) != 1 || claim.Reserved || len(claim.ReservedFor) != 0:
		return "its AddressClaim is not of this Service alone"
	case claim.Replaced >= maxReplaced:
		return fmt.Sprintf("%d addresses of the Service were replaced before", claim.Replaced)
	// Abs: clocks differ, and a Claim from the future is old, too
	case p.now.IsZero() || p.now.Sub(claim.Created).Abs() > replaceWithin:
		return fmt.Sprintf("it was assigned more than %.0f minutes before", replaceWithin.Minutes())
	}
	return ""
}

// conflictRemedy returns what to do about a conflict that replaceConflicting has not solved.
func (p *plan) conflictRemedy(h *service, c cluster.Conflict) string {
	why := p.whyKept(h, c)
	if why == "" {
		return "no other address is free: take the address from that host, or add addresses to the pool"
	}
	return "not replaced, because " + why + ": take the address from that host, or request another one"
}

func (p *holdings) conflictFree(pool *pool, a netip.Addr) bool {
	_, is := p.conflict(pool, a)
	return !is
}
