package ipam

import (
	"fmt"
	"net/netip"
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
		s.Services = s.Services.With(cluster.Service{Spec: &cluster.Spec{
			Name:       cluster.Name{Namespace: "default", Name: fmt.Sprintf("s%05d", i)},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
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
	for name, pool := range map[string]string{
		"room": "10.0.0.0-10.255.255.255", "full": "10.0.0.0-" + last.String(), "short": "10.0.0.0-10.0.3.255",
	} {
		b.Run(name, func(b *testing.B) {
			s := manyServices(pool)
			for b.Loop() {
				allocateAll(s)
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
				next, changed := *inner.s, inner.s.Services.At(5000)
				if what == "endpoints" {
					changed.Endpoints = &cluster.Endpoints{}
				} else {
					changed.Spec = new(*changed.Spec)
				}
				next.Services = next.Services.With(changed)
				inner.s = &next
				src.Snapshot()
			}
		})
	}
}

// BenchmarkReader is one change among 10,000 Services with addresses, as a speaker reads it: a new
// endpoint, and a Service that comes and gets its address.
func BenchmarkReader(b *testing.B) {
	snap := settledAtScale(10_000)
	read := func(b *testing.B, change func(i int) *cluster.Snapshot) {
		source := &scripted{snap}
		r := NewReader(source)
		r.Snapshot()
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			source.snapshot = change(i)
			if len(r.Snapshot().Refusals) != 0 {
				b.Fatal("a claim is missing")
			}
		}
	}
	b.Run("endpoint", func(b *testing.B) {
		read(b, func(i int) *cluster.Snapshot {
			next, changed := *snap, snap.Services.At(i%snap.Services.Len())
			changed.Endpoints = &cluster.Endpoints{}
			next.Services = snap.Services.With(changed)
			return &next
		})
	})
	b.Run("service", func(b *testing.B) {
		assigned := snap.Assignments.Slice()
		read(b, func(i int) *cluster.Snapshot {
			next := *snap
			i = i * 7919 % len(assigned)
			next.Services = snap.Services.Without(assigned[i].Service)
			next.Assignments = snap.Assignments.Without(assigned[i])
			next.Claims = snap.Claims.Without(assigned[i].Addr)
			return &next
		})
	})
}
