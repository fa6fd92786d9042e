package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// byPriority is the order in which pools are tried: the higher priority first, then the
// first by name. It does not depend on creation times, so that a cluster that is rebuilt
// from its manifests gets the same addresses.
func byPriority(a, b *pool) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
}

// refusal says why h cannot have address a, empty if it can.
func (p *holdings) refusal(h *service, a netip.Addr) (cluster.Code, string) {
	pool := p.poolOf(a)
	switch other := p.owner(a, h); {
	case !slices.Contains(h.IPFamilies, cluster.FamilyOf(a)):
		return cluster.RequestRefused, fmt.Sprintf("which is no address of its ipFamilies (%s)", join(h.IPFamilies))
	case pool != nil && p.excludes(h, pool) != "":
		return cluster.RequestRefused, fmt.Sprintf("which is in pool %s, which %s", pool.Name, p.excludes(h, pool))
	case other != nil:
		return cluster.AddressConflict, "which " + other.String() + p.inReturn(h, other.Name)
	case !p.claimHoldersOf(a).admits(h.Name):
		return cluster.AddressConflict, fmt.Sprintf("which is reserved for %s", p.claimHoldersOf(a).beneficiaries())
	case p.claimHoldersOf(a).gone != nil:
		return cluster.AddressConflict, fmt.Sprintf("which %s, a Service that is gone, still holds",
			p.claimHoldersOf(a).gone)
	case pool == nil:
		return cluster.RequestRefused, "which is in no pool; " + p.describePools()
	case !h.suits(pool):
		return cluster.RequestRefused, fmt.Sprintf("which is in pool %s, and for pool %s; remove one of the two",
			pool.Name, join(h.RequestedPools))
	case pool.Allocation == cluster.Drained:
		return cluster.RequestRefused, fmt.Sprintf("which is in pool %s, which is Drained and allocates no addresses",
			pool.Name)
	case pool.AvoidBuggyIPs && a.Is4() && buggy(a):
		return cluster.RequestRefused, fmt.Sprintf("which pool %s does not give out, because of avoidBuggyIPs",
			pool.Name)
	case pool.OccupiedBy(a) != "":
		return cluster.AddressConflict, fmt.Sprintf("which belongs to %s", pool.OccupiedBy(a))
	}
	if limit := p.exceeds(h, pool, a); limit != "" {
		return cluster.QuotaExceeded, fmt.Sprintf("which is in pool %s, %s", pool.Name, limit)
	}
	return "", ""
}

// inReturn continues a refusal if the Service that h waits for requests an address of h: each keeps
// its own, because exchanging them would need a moment in which both have both.
func (p *holdings) inReturn(h *service, holder cluster.Name) string {
	other := p.Snap.Service(holder)
	i := slices.IndexFunc(h.addrs, func(a netip.Addr) bool { return other != nil && asked(p.Snap.Pools, other, a) })
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("; that Service asks for %s of this one, so each keeps its own: let one of the two request "+
		"a third address first", h.addrs[i])
}

// place allocates an address of each family that h has none of.
func (p *plan) place(h *service) {
	var found []netip.Addr
	missing := false
	for _, family := range h.IPFamilies {
		if slices.Contains(h.excluded, family) || h.has(family) && !p.elsewhere(h, family) {
			missing = missing || !h.has(family)
			continue
		}
		a, code, why := search{p.holdings, h, family}.find()
		if why != "" {
			p.refuse(h, code, "%s", why)
			missing = missing || !h.has(family)
			continue
		}
		found = append(found, a)
	}
	if missing && len(found) != 0 && h.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack {
		p.refuse(h, cluster.RequestRefused, "needs addresses of both families (RequireDualStack), and gets no other "+
			"until both can be had")
		return
	}
	for _, a := range found {
		p.replace(h, a)
	}
}

// elsewhere reports whether h names another pool than that of its address of family.
func (p *holdings) elsewhere(h *service, family corev1.IPFamily) bool {
	return len(h.RequestedPools) != 0 && !slices.ContainsFunc(h.addrs, func(a netip.Addr) bool {
		return cluster.FamilyOf(a) == family && p.cameFrom(h, a)
	})
}
