package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A quotaKey identifies the addresses of one family that a namespace's Services have of a pool.
type quotaKey struct {
	pool, namespace string
	family          corev1.IPFamily
}

// A usage counts the addresses for each quotaKey, for pools with a quota. An address that Services
// of one namespace share counts once.
type usage struct {
	limited map[string]bool  // the pools with a quota
	held    map[quotaKey]int // the addresses of settled Services
	// open counts the holders of other Services' addresses, except addresses that a settled Service
	// of the namespace also has.
	open map[quotaKey]map[netip.Addr]int
}

// newUsage counts settled and reserved addresses, and addresses that deleted Services are about to
// leave reserved: deleting and creating Services must not evade the quota.
func (p *holdings) newUsage() {
	p.usage.limited = map[string]bool{}
	for _, pool := range p.Snap.Pools {
		if pool.Quota != 0 {
			p.usage.limited[pool.Name] = true
		}
	}
	if len(p.usage.limited) == 0 {
		return
	}
	p.usage.held, p.usage.open = map[quotaKey]int{}, map[quotaKey]map[netip.Addr]int{}
	for _, a := range p.Held { // a settled Service shares its address with no other
		if p.usage.limited[a.Pool] {
			p.usage.held[quotaKey{a.Pool, a.Service.Namespace, cluster.FamilyOf(a.Addr)}]++
		}
	}
	for _, c := range p.Loose {
		for _, name := range c.ReservedFor {
			p.count(name, c.Addr, 1)
		}
		for _, h := range c.Holders {
			if h.Reserve && p.Snap.Service(h.Name) == nil {
				p.count(h.Name, c.Addr, 1)
			}
		}
	}
}

// count records that a Service has gained (n 1) or lost (n -1) address a.
func (p *holdings) count(service cluster.Name, a netip.Addr, n int) {
	if len(p.usage.limited) == 0 {
		return
	}
	pool := cluster.PoolOf(p.Snap.Pools, a)
	if !p.usage.limited[pool] || p.heldIn(service.Namespace, a) {
		return
	}
	k := quotaKey{pool, service.Namespace, cluster.FamilyOf(a)}
	if p.usage.open[k] == nil {
		p.usage.open[k] = map[netip.Addr]int{}
	}
	if p.usage.open[k][a] += n; p.usage.open[k][a] == 0 {
		delete(p.usage.open[k], a)
	}
}

// heldIn reports whether a settled Service of a namespace has address a.
func (p *holdings) heldIn(namespace string, a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(p.Held, a,
		func(as cluster.Assignment, a netip.Addr) int { return as.Addr.Compare(a) })
	return i < len(p.Held) && p.Held[i].Addr == a && p.Held[i].Service.Namespace == namespace
}

// exceeds returns why h's namespace may not have address a of the pool in addition, as the end of a
// sentence; empty if it may. Addresses that h has and does not request do not count, because h
// would release them.
func (p *holdings) exceeds(h *service, pool *pool, a netip.Addr) string {
	if pool.Quota == 0 {
		return ""
	}
	family, ns := cluster.FamilyOf(a), h.Name.Namespace
	k := quotaKey{pool.Name, ns, family}
	open := p.usage.open[k]
	if open[a] != 0 || p.heldIn(ns, a) {
		return ""
	}
	n := p.usage.held[k] + len(open)
	for _, own := range h.addrs {
		if open[own] == 1 && !asked(p.Snap.Pools, h.Spec, own) {
			n--
		}
	}
	if n < pool.Quota {
		return ""
	}
	return fmt.Sprintf("of which namespace %s has %d %s addresses already; its namespaceQuota is %d", ns, n, family,
		pool.Quota)
}
