package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A search is for a free address of a family for a Service.
type search struct {
	*holdings
	h      *service
	family corev1.IPFamily
}

// find returns a free address, or why there is none.
func (s search) find() (a netip.Addr, code cluster.Code, why string) {
	pools, why := s.candidates()
	if why != "" {
		return netip.Addr{}, cluster.RequestRefused, why
	}
	if len(pools) == 0 {
		return netip.Addr{}, cluster.NoPool, fmt.Sprintf("no Automatic pool has %s addresses; %s", s.family,
			s.describePools())
	}
	open, barred := s.admit(pools)
	if len(open) == 0 {
		return netip.Addr{}, cluster.NoPool, fmt.Sprintf("no Automatic pool with %s addresses is for this Service: %s",
			s.family, barred)
	}
	if a := s.joined(s.h, s.family, open); a.IsValid() && s.exceeds(s.h, s.poolOf(a), a) == "" {
		return a, "", ""
	}
	return s.findIn(open)
}

// findIn is find among pools that admit h. Addresses that other hosts use come last: a host that
// answers for all of them leaves Services with addresses, which work once it stops.
func (s search) findIn(pools []*pool) (a netip.Addr, code cluster.Code, why string) {
	a, code, why = s.findAmong(pools, s.conflictFree)
	if code == cluster.PoolExhausted && len(s.Snap.Conflicts) != 0 {
		a, code, why = s.findAmong(pools, func(*pool, netip.Addr) bool { return true })
	}
	return a, code, why
}

// findAmong is findIn among the addresses that are usable.
func (s search) findAmong(pools []*pool,
	usable func(*pool, netip.Addr) bool) (a netip.Addr, code cluster.Code, why string) {
	var full []*pool
	var over []string
	for _, pool := range pools {
		a, ok := s.next(pool, usable)
		if !ok {
			full = append(full, pool)
			continue
		}
		limit := s.exceeds(s.h, pool, a)
		if limit == "" {
			return a, "", ""
		}
		over = append(over, fmt.Sprintf("gets no address of pool %s, %s", pool.Name, limit))
	}
	if len(over) != 0 { // the rest is left to other namespaces
		return netip.Addr{}, cluster.QuotaExceeded, strings.Join(over, "; ")
	}
	return netip.Addr{}, cluster.PoolExhausted, s.exhausted(full)
}

// next is the first usable address of the pool that is free for h, from its own position on.
func (s search) next(pool *pool, usable func(*pool, netip.Addr) bool) (netip.Addr, bool) {
	if pool.full[s.family] {
		return netip.Addr{}, false
	}
	busy, full := s.walkHeld(), true
	for a := range pool.space(s.family).positions(s.h.positionName()) {
		if s.h.Sharing == nil && (busy(a) || len(s.taken[a]) != 0) {
			continue // the usual case in a full pool: skip it before the slower checks
		}
		if !s.free(a, s.h) {
			continue
		}
		if usable(pool, a) {
			return a, true
		}
		full = false
	}
	pool.full[s.family] = full
	return netip.Addr{}, false
}

// walkHeld returns a function that reports whether a settled Service has an address. It is
// fast for addresses in ascending order.
func (s search) walkHeld() func(netip.Addr) bool {
	var rest []cluster.Assignment
	var last netip.Addr
	return func(a netip.Addr) bool {
		if !last.IsValid() || a.Less(last) {
			i, _ := slices.BinarySearchFunc(s.Held, a,
				func(as cluster.Assignment, a netip.Addr) int { return as.Addr.Compare(a) })
			rest = s.Held[i:]
		}
		for last = a; len(rest) != 0 && rest[0].Addr.Less(a); {
			rest = rest[1:]
		}
		return len(rest) != 0 && rest[0].Addr == a
	}
}

// candidates are the pools that may give h an address, in the order in which they are
// tried; admission is checked only for pools that h names. If h can have none of them, why
// says the reason.
func (s search) candidates() (pools []*pool, why string) {
	if len(s.h.RequestedPools) == 0 {
		for _, pool := range s.pools {
			if pool.Allocation == cluster.Automatic && len(pool.space(s.family).ranges) != 0 {
				pools = append(pools, pool)
			}
		}
		return pools, ""
	}
	var whys []string
	unknown := ""
	for _, name := range s.h.RequestedPools {
		i := slices.IndexFunc(s.pools, func(q *pool) bool { return q.Name == name })
		switch {
		case i < 0:
			whys = append(whys, fmt.Sprintf("pool %s, which does not exist", name))
			unknown = "; " + s.describePools()
		case s.pools[i].Allocation == cluster.Drained:
			whys = append(whys, fmt.Sprintf("pool %s, which is Drained and allocates no addresses", name))
		case s.excludes(s.h, s.pools[i]) != "":
			whys = append(whys, fmt.Sprintf("pool %s, which %s", name, s.excludes(s.h, s.pools[i])))
		case len(s.pools[i].space(s.family).ranges) == 0:
			whys = append(whys, fmt.Sprintf("pool %s, %s", name, s.lacks(s.pools[i])))
		default:
			pools = append(pools, s.pools[i])
		}
	}
	if len(pools) != 0 {
		return pools, ""
	}
	return nil, "asks for " + strings.Join(whys, ", and for ") + unknown
}

// lacks says why a pool has no addresses of the family, as the end of a sentence.
func (s search) lacks(pool *pool) string {
	for _, r := range pool.Lost {
		if owner := s.poolOf(r.From()); owner != nil && cluster.FamilyOf(r.From()) == s.family {
			return fmt.Sprintf("whose %s addresses belong to older pools: %s is of pool %s; remove "+
				"it from one of the two", s.family, rangeText(r), owner.Name)
		}
	}
	return fmt.Sprintf("which has no %s addresses", s.family)
}

// admit selects the pools that admit h, and says why the others do not.
func (s search) admit(pools []*pool) (open []*pool, why string) {
	var not []string
	for _, pool := range pools {
		if bar := s.excludes(s.h, pool); bar != "" {
			not = append(not, fmt.Sprintf("pool %s %s", pool.Name, bar))
			continue
		}
		open = append(open, pool)
	}
	return open, strings.Join(not, "; ")
}
