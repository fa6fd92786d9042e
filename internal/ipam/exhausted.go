package ipam

import (
	"fmt"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Excluded returns why a pool does not give out addresses of a family, apart from Services and
// reservations; empty if it gives out all of them.
func Excluded(p *cluster.Pool, f corev1.IPFamily) string {
	s := newSpace(p, f == corev1.IPv4Protocol)
	how := "some"
	if Count(p, f) == 0 {
		how = "all"
	}
	var causes []string
	for _, r := range s.ranges {
		if s.countBuggy(r) != 0 {
			causes = append(causes, "avoidBuggyIPs excludes .0 and .255")
			break
		}
	}
	var others []cluster.Occupied
	for _, o := range p.Occupied {
		if cluster.FamilyOf(o.Range.From()) == f {
			others = append(others, o)
		}
	}
	switch {
	case len(others) == 1:
		causes = append(causes, fmt.Sprintf("%s belongs to %s", rangeText(others[0].Range), others[0].By))
	case len(others) != 0:
		causes = append(causes, fmt.Sprintf("%s belongs to %s, and others are in use, too", rangeText(others[0].Range), others[0].By))
	}
	if len(causes) == 0 {
		return ""
	}
	return fmt.Sprintf("%s are excluded (%s)", how, strings.Join(causes, "; "))
}

func rangeText(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	return r.String()
}

// exhausted explains that no address of a family is free in pools, and what helps. It has no number
// that changes with every Service: each new text is an Event of each Service that waits.
func (p *plan) exhausted(pools []*pool, family corev1.IPFamily) string {
	var s []string
	plain := true
	for _, pool := range pools {
		if pool.whyFull[family] == "" {
			pool.whyFull[family] = p.whyFull(pool, family)
		}
		plain = plain && pool.whyFull[family] == taken
		s = append(s, fmt.Sprintf("of pool %s, %s", pool.Name, pool.whyFull[family]))
	}
	if plain {
		return fmt.Sprintf("every %s address of %s is taken; add addresses", family, names(pools))
	}
	return fmt.Sprintf("no %s address is free: %s; add addresses, or end what excludes them", family, strings.Join(s, "; "))
}

// taken is what whyFull returns if Services have all addresses.
const taken = "Services have all"

// whyFull returns why no address of a family of the pool is free.
func (p *plan) whyFull(pool *pool, family corev1.IPFamily) string {
	var causes []string
	if why := Excluded(pool.Pool, family); why != "" {
		causes = append(causes, why)
	}
	if Count(pool.Pool, family) == 0 && len(causes) != 0 {
		return causes[0]
	}
	reserved, assigned := p.reservedIn(pool, family), true
	if reserved != 0 {
		causes = append(causes, "some are reserved, as `kubectl get addressclaims` shows")
		assigned = int64(reserved) < Count(pool.Pool, family)
	}
	switch {
	case len(causes) == 0:
		return taken
	case assigned:
		causes = append(causes, "Services have the others")
	}
	return strings.Join(causes, ", ")
}

// reservedIn counts the addresses of a family of the pool that are reserved and that no Service has.
func (p *plan) reservedIn(pool *pool, family corev1.IPFamily) (n int) {
	for _, c := range p.Loose {
		if cluster.FamilyOf(c.Addr) == family && len(c.Holders) == 0 && Gives(pool.Pool, c.Addr) {
			n++
		}
	}
	return n
}
