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
		causes = append(causes, fmt.Sprintf("%s belongs to %s, and others are in use, too", rangeText(others[0].Range),
			others[0].By))
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
func (s search) exhausted(pools []*pool) string {
	var whys []string
	plain := true
	for _, pool := range pools {
		if pool.whyFull[s.family] == "" {
			pool.whyFull[s.family] = s.whyFull(pool)
		}
		plain = plain && pool.whyFull[s.family] == taken
		whys = append(whys, fmt.Sprintf("of pool %s, %s", pool.Name, pool.whyFull[s.family]))
	}
	if plain {
		return fmt.Sprintf("every %s address of %s is taken; add addresses", s.family, names(pools))
	}
	return fmt.Sprintf("no %s address is free: %s; add addresses, or end what excludes them", s.family,
		strings.Join(whys, "; "))
}

// taken is what whyFull returns if Services have all addresses.
const taken = "Services have all"

// whyFull returns why no address of a family of the pool is free.
func (s search) whyFull(pool *pool) string {
	var causes []string
	if why := Excluded(pool.Pool, s.family); why != "" {
		causes = append(causes, why)
	}
	if Count(pool.Pool, s.family) == 0 && len(causes) != 0 {
		return causes[0]
	}
	reserved, assigned := s.reservedIn(pool), true
	if reserved != 0 {
		causes = append(causes, "some are reserved, as `kubectl get addressclaims` shows")
		assigned = int64(reserved) < Count(pool.Pool, s.family)
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
func (s search) reservedIn(pool *pool) (n int) {
	for _, c := range s.Loose {
		if cluster.FamilyOf(c.Addr) == s.family && len(c.Holders) == 0 && Gives(pool.Pool, c.Addr) {
			n++
		}
	}
	return n
}
