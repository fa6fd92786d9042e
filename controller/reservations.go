package controller

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

// A refusedReservation is a deleted Service whose request to keep its address is refused, and why.
type refusedReservation struct {
	holder cluster.Holder
	why    string
}

// reserve decides which deleted Services of r keep the address.
func (p *planner) reserve(r *release) {
	for _, h := range r.from {
		if !h.Reserve {
			continue
		}
		ok, why := p.reserved.add(r.old, h.Name, slices.Concat(r.kept, r.reserve))
		if ok {
			r.reserve = append(r.reserve, h.Name)
			continue
		}
		if p.snap.NamespaceGone(h.Name.Namespace) {
			r.expired = append(r.expired, h.Name.Namespace)
		}
		r.refused = append(r.refused, refusedReservation{h, why})
	}
}

// kept returns the Services that a claim remains reserved for: not a Service that exists again
// without taking the address, nor one whose namespace is gone. A user's reservation stays.
func (p *planner) kept(c *cluster.Claim) []cluster.Name {
	if c.Reserved {
		return c.ReservedFor
	}
	return slices.DeleteFunc(slices.Clone(c.ReservedFor), func(name cluster.Name) bool {
		return p.snap.NamespaceGone(name.Namespace) ||
			p.snap.Service(name) != nil && !p.foreign(name) && !p.shouldHave(name, c.Addr)
	})
}

// expired returns the namespaces that c is reserved for and that no longer exist.
func (p *planner) expired(c *cluster.Claim) (gone []string) {
	for _, ns := range namespacesOf(c.ReservedFor) {
		if !c.Reserved && p.snap.NamespaceGone(ns) {
			gone = append(gone, ns)
		}
	}
	return gone
}

// reservedUsage counts the addresses that stay reserved. Users of a namespace create and delete
// Services as often as they like, so their reservations are limited, and end with the namespace.
type reservedUsage struct {
	snap  *cluster.Snapshot
	count map[reservedKey]int
}

// A reservedKey identifies the reserved addresses of one family that a namespace has in a pool; the
// pool is empty for addresses outside of all pools.
type reservedKey struct {
	namespace, pool string
	family          corev1.IPFamily
}

// newReservedUsage counts the reservations in claims, except those of users.
func newReservedUsage(snap *cluster.Snapshot, claims []*cluster.Claim,
	kept func(*cluster.Claim) []cluster.Name) *reservedUsage {
	r := &reservedUsage{snap, map[reservedKey]int{}}
	for _, c := range claims {
		if c.Reserved {
			continue
		}
		for _, ns := range namespacesOf(kept(c)) {
			r.count[r.keyOf(ns, c.Addr)]++
		}
	}
	return r
}

func (r *reservedUsage) keyOf(namespace string, a netip.Addr) reservedKey {
	return reservedKey{namespace, cluster.PoolOf(r.snap.Pools, a), cluster.FamilyOf(a)}
}

// add reserves c for a deleted Service, in addition to the Services in kept, or returns why not.
func (r *reservedUsage) add(c *cluster.Claim, by cluster.Name, kept []cluster.Name) (ok bool, why string) {
	if r.snap.NamespaceGone(by.Namespace) {
		return false, fmt.Sprintf("%s is not reserved: namespace %s is gone", c.Addr, by.Namespace)
	}
	if len(kept) >= ipam.MaxSharing {
		return false, fmt.Sprintf("%s is not reserved: it is reserved for %d Services, and no more can be", c.Addr,
			len(kept))
	}
	s := r.keyOf(by.Namespace, c.Addr)
	if slices.ContainsFunc(kept, func(n cluster.Name) bool { return n.Namespace == by.Namespace }) {
		return true, "" // counted already
	}
	quota := cluster.DefaultReservedQuota
	if pool := cluster.PoolNamed(r.snap.Pools, s.pool); pool != nil {
		quota = pool.ReservedQuota
	}
	if r.count[s] >= quota {
		return false, fmt.Sprintf("%s is not reserved: namespace %s has %d reserved %s addresses of pool %s; its "+
			"namespaceReservedQuota is %d",
			c.Addr, by.Namespace, r.count[s], s.family, s.pool, quota)
	}
	r.count[s]++
	return true, ""
}

// namespacesOf returns the namespaces of names, which are sorted.
func namespacesOf(names []cluster.Name) (list []string) {
	for _, n := range names {
		if len(list) == 0 || list[len(list)-1] != n.Namespace {
			list = append(list, n.Namespace)
		}
	}
	return list
}
