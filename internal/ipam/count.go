package ipam

import (
	"math"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Count is how many addresses of a family a pool may give out, at most
// math.MaxInt64.
func Count(p *cluster.Pool, f corev1.IPFamily) int64 {
	s := newSpace(p, f == corev1.IPv4Protocol)
	if s.size.hi != 0 || s.size.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	n := int64(s.size.lo)
	if s.avoidBuggy {
		for _, r := range s.ranges {
			n -= countBuggy(r.To()) - countBuggy(r.From())
			if buggy(r.From()) {
				n--
			}
		}
	}
	return n
}

// countBuggy is how many IPv4 addresses up to a are buggy: two in each 256.
func countBuggy(a netip.Addr) int64 {
	v := int64(toUint128(a).lo)
	return v/256 + 1 + (v+1)/256
}
