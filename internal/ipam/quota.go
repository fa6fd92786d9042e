package ipam

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A share is what the Services of a namespace have of a pool, of one family.
type share struct {
	pool, namespace string
	family          corev1.IPFamily
}

// A usage is how many Services of a namespace have each address of its share: one
// that they have together counts once. It is kept of pools with a quota only.
type usage map[share]map[netip.Addr]int

// newUsage counts what is settled, and what is kept for Services that are away: who
// creates and deletes Services must not get more than who keeps them.
func newUsage(s *Survey) usage {
	limited := map[string]bool{}
	for _, p := range s.Snap.Pools {
		if p.Quota != 0 {
			limited[p.Name] = true
		}
	}
	if len(limited) == 0 {
		return nil
	}
	u := usage{}
	for _, a := range s.Held {
		if limited[a.Pool] {
			u.add(a.Pool, a.Service, a.Addr, 1)
		}
	}
	for _, c := range s.Loose {
		pool := cluster.PoolOf(s.Snap.Pools, c.Addr)
		for _, name := range c.ReservedFor {
			if limited[pool] {
				u.add(pool, name, c.Addr, 1)
			}
		}
	}
	return u
}

func (u usage) add(pool string, service cluster.Name, a netip.Addr, n int) {
	k := share{pool, service.Namespace, cluster.FamilyOf(a)}
	if u[k] == nil {
		u[k] = map[netip.Addr]int{}
	}
	if u[k][a] += n; u[k][a] == 0 {
		delete(u[k], a)
	}
}

// count notes that h has address a, with n 1, or not any more, with n -1.
func (p *plan) count(h *holder, a netip.Addr, n int) {
	if p.usage == nil {
		return
	}
	if pool := p.poolOf(a); pool != nil && pool.Quota != 0 {
		p.usage.add(pool.Name, h.Name, a, n)
	}
}

// exceeds says why h's namespace may not have address a of the pool besides those
// that it has, as the end of a sentence; empty when it may. What h has and does not
// ask for by name is not counted: it would be given up for the other.
func (p *plan) exceeds(h *holder, pool *pool, a netip.Addr) string {
	if pool.Quota == 0 {
		return ""
	}
	family := cluster.FamilyOf(a)
	have := p.usage[share{pool.Name, h.Name.Namespace, family}]
	n := len(have)
	if have[a] != 0 {
		return ""
	}
	for _, own := range h.addrs {
		if have[own] == 1 && !asked(p.Snap.Pools, h.Spec, own) {
			n--
		}
	}
	if n < pool.Quota {
		return ""
	}
	return fmt.Sprintf("of which namespace %s has %d %s addresses already; its namespaceQuota is %d", h.Name.Namespace, n, family, pool.Quota)
}
