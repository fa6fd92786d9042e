package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A share is what the Services of a namespace have of a pool, of one family.
type share struct {
	pool, namespace string
	family          corev1.IPFamily
}

// A usage counts the addresses of each share, of pools with a quota. One that Services
// of a namespace have together counts once.
type usage struct {
	limited map[string]bool // the pools with a quota
	held    map[share]int   // what settled Services have
	// open are the addresses of other Services, and how many have each; without those
	// that a settled Service of the namespace has, too.
	open map[share]map[netip.Addr]int
}

// newUsage counts what is settled, and what is kept for Services that are away: who
// creates and deletes Services must not get more than who keeps them.
func (p *plan) newUsage() {
	p.usage.limited = map[string]bool{}
	for _, pool := range p.Snap.Pools {
		if pool.Quota != 0 {
			p.usage.limited[pool.Name] = true
		}
	}
	if len(p.usage.limited) == 0 {
		return
	}
	p.usage.held, p.usage.open = map[share]int{}, map[share]map[netip.Addr]int{}
	for _, a := range p.Held { // A settled Service shares its address with no other.
		if p.usage.limited[a.Pool] {
			p.usage.held[share{a.Pool, a.Service.Namespace, cluster.FamilyOf(a.Addr)}]++
		}
	}
	for _, c := range p.Loose {
		for _, name := range c.ReservedFor {
			p.count(name, c.Addr, 1)
		}
	}
}

// count notes that a Service has address a, with n 1, or not any more, with n -1.
func (p *plan) count(service cluster.Name, a netip.Addr, n int) {
	if len(p.usage.limited) == 0 {
		return
	}
	pool := cluster.PoolOf(p.Snap.Pools, a)
	if !p.usage.limited[pool] || p.heldIn(service.Namespace, a) {
		return
	}
	k := share{pool, service.Namespace, cluster.FamilyOf(a)}
	if p.usage.open[k] == nil {
		p.usage.open[k] = map[netip.Addr]int{}
	}
	if p.usage.open[k][a] += n; p.usage.open[k][a] == 0 {
		delete(p.usage.open[k], a)
	}
}

// heldIn says whether a settled Service of a namespace has address a.
func (p *plan) heldIn(namespace string, a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(p.Held, a, func(as cluster.Assignment, a netip.Addr) int { return as.Addr.Compare(a) })
	return i < len(p.Held) && p.Held[i].Addr == a && p.Held[i].Service.Namespace == namespace
}

// exceeds says why h's namespace may not have address a of the pool besides those
// that it has, as the end of a sentence; empty when it may. What h has and does not
// ask for by name is not counted: it would be given up for the other.
func (p *plan) exceeds(h *holder, pool *pool, a netip.Addr) string {
	if pool.Quota == 0 {
		return ""
	}
	family, ns := cluster.FamilyOf(a), h.Name.Namespace
	k := share{pool.Name, ns, family}
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
	return fmt.Sprintf("of which namespace %s has %d %s addresses already; its namespaceQuota is %d", ns, n, family, pool.Quota)
}
