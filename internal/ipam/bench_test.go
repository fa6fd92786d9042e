package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const many = 10_000

func manyServices(pool string) *cluster.Snapshot {
	s := &cluster.Snapshot{Pools: []*cluster.Pool{{
		Name: "lan", Allocation: cluster.Automatic, Ranges: []netipx.IPRange{netipx.MustParseIPRange(pool)},
	}}}
	for i := range many {
		s.Services = append(s.Services, cluster.Service{Spec: &cluster.Spec{
			Name: cluster.Name{Namespace: "default", Name: fmt.Sprintf("s%05d", i)}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		}})
	}
	return s
}

// BenchmarkAllocate gives 10,000 Services an address each, of a pool with room
// and of one that they fill.
func BenchmarkAllocate(b *testing.B) {
	last := netip.MustParseAddr("10.0.0.0")
	for range many - 1 {
		last = last.Next()
	}
	for name, pool := range map[string]string{"room": "10.0.0.0-10.255.255.255", "full": "10.0.0.0-" + last.String(), "short": "10.0.0.0-10.0.3.255"} {
		b.Run(name, func(b *testing.B) {
			s := manyServices(pool)
			for b.Loop() {
				Allocate(s)
			}
		})
	}
}

// BenchmarkSource is what the Source costs when endpoints changed, and when a
// Service did.
func BenchmarkSource(b *testing.B) {
	for _, what := range []string{"endpoints", "spec"} {
		b.Run(what, func(b *testing.B) {
			inner := &fixed{manyServices("10.0.0.0-10.255.255.255")}
			src := NewSource(inner, nil)
			src.Snapshot()
			for b.Loop() {
				next := *inner.s
				next.Services = slices.Clone(next.Services)
				if what == "endpoints" {
					next.Services[5000].Endpoints = &cluster.Endpoints{}
				} else {
					next.Services[5000].Spec = new(*next.Services[5000].Spec)
				}
				inner.s = &next
				src.Snapshot()
			}
		})
	}
}
