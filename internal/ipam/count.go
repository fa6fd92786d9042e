package ipam

import (
	"math"
	"net/netip"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Count returns how many addresses of a family a pool may give out, at most math.MaxInt64.
func Count(p *cluster.Pool, f corev1.IPFamily) int64 {
	s := newSpace(p, f == corev1.IPv4Protocol)
	n := s.size
	for _, o := range p.Occupied {
		if cluster.FamilyOf(o.Range.From()) == f {
			n = n.sub(length(o.Range)).add(uint128{lo: s.countBuggy(o.Range)}) // they are subtracted only once
		}
	}
	for _, r := range s.ranges {
		n = n.sub(uint128{lo: s.countBuggy(r)})
	}
	if n.hi != 0 || n.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n.lo)
}

// Gives reports whether the pool allocates address a.
func Gives(p *cluster.Pool, a netip.Addr) bool {
	return p.Contains(a) && p.OccupiedBy(a) == "" && !(p.AvoidBuggyIPs && a.Is4() && buggy(a))
}

// countBuggy returns how many addresses of r are not given out because they are buggy.
func (s space) countBuggy(r netipx.IPRange) uint64 {
	if !s.avoidBuggy {
		return 0
	}
	n := countBuggy(r.To()) - countBuggy(r.From())
	if buggy(r.From()) {
		n++
	}
	return n
}

// countBuggy returns how many IPv4 addresses up to a are buggy: two in each 256.
func countBuggy(a netip.Addr) uint64 {
	v := toUint128(a).lo
	return v/256 + 1 + (v+1)/256
}
