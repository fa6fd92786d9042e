package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// find returns a free address of family for h.
func (p *plan) find(h *service, family corev1.IPFamily) (a netip.Addr, code cluster.Code, why string) {
	pools, why := p.candidates(h, family)
	if why != "" {
		return netip.Addr{}, cluster.RequestRefused, why
	}
	if len(pools) == 0 {
		return netip.Addr{}, cluster.NoPool, fmt.Sprintf("no Automatic pool has %s addresses; %s", family, p.describePools())
	}
	open, barred := p.admit(h, pools)
	if len(open) == 0 {
		return netip.Addr{}, cluster.NoPool, fmt.Sprintf("no Automatic pool with %s addresses is for this Service: %s", family, barred)
	}
	if a := p.joined(h, family, open); a.IsValid() && p.exceeds(h, p.poolOf(a), a) == "" {
		return a, "", ""
	}
	return p.findIn(open, h, family)
}

// findIn is find among pools that admit h. Addresses that other hosts use come last: a host that
// answers for all of them leaves Services with addresses, which work once it stops.
func (p *plan) findIn(pools []*pool, h *service, family corev1.IPFamily) (a netip.Addr, code cluster.Code, why string) {
	a, code, why = p.findAmong(pools, h, family, p.conflictFree)
	if code == cluster.PoolExhausted && len(p.Snap.Conflicts) != 0 {
		a, code, why = p.findAmong(pools, h, family, func(*pool, netip.Addr) bool { return true })
	}
	return a, code, why
}

// findAmong is findIn among the addresses that are usable.
func (p *plan) findAmong(pools []*pool, h *service, family corev1.IPFamily, usable func(*pool, netip.Addr) bool) (a netip.Addr, code cluster.Code, why string) {
	var full []*pool
	var over []string
	for _, pool := range pools {
		a, ok := p.next(pool, h, family, usable)
		if !ok {
			full = append(full, pool)
			continue
		}
		limit := p.exceeds(h, pool, a)
		if limit == "" {
			return a, "", ""
		}
		over = append(over, fmt.Sprintf("gets no address of pool %s, %s", pool.Name, limit))
	}
	if len(over) != 0 { // the rest is left to other namespaces
		return netip.Addr{}, cluster.QuotaExceeded, strings.Join(over, "; ")
	}
	return netip.Addr{}, cluster.PoolExhausted, p.exhausted(full, family)
}

// next is the first usable address of the pool that is free for h, from its own position on.
func (p *plan) next(pool *pool, h *service, family corev1.IPFamily, usable func(*pool, netip.Addr) bool) (netip.Addr, bool) {
	if pool.full[family] {
		return netip.Addr{}, false
	}
	busy, full := p.walkHeld(), true
	for a := range pool.space(family).positions(h.positionName()) {
		if h.Sharing == nil && (busy(a) || len(p.taken[a]) != 0) {
			continue // the usual case in a full pool: skip it before the slower checks
		}
		if !p.free(a, h) {
			continue
		}
		if usable(pool, a) {
			return a, true
		}
		full = false
	}
	pool.full[family] = full
	return netip.Addr{}, false
}

// walkHeld returns a function that reports whether a settled Service has an address. It is
// fast for addresses in ascending order.
func (p *plan) walkHeld() func(netip.Addr) bool {
	var rest []cluster.Assignment
	var last netip.Addr
	return func(a netip.Addr) bool {
		if !last.IsValid() || a.Less(last) {
			i, _ := slices.BinarySearchFunc(p.Held, a, func(as cluster.Assignment, a netip.Addr) int { return as.Addr.Compare(a) })
			rest = p.Held[i:]
		}
		for last = a; len(rest) != 0 && rest[0].Addr.Less(a); {
			rest = rest[1:]
		}
		return len(rest) != 0 && rest[0].Addr == a
	}
}
