package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// atScale is a cluster with n Services in 50 namespaces, and pools of each kind: one
// with a quota and a selector that all pass, one that is full but for a handful, and one
// for what is left. It has no claims yet.
func atScale(n int) *cluster.Snapshot {
	first := netip.MustParseAddr("10.0.0.0")
	last := toUint128(first).add(uint128{lo: uint64(n/2 - 1)}).addr(true)
	s := &cluster.Snapshot{Pools: []*cluster.Pool{
		{Name: "first", Allocation: cluster.Automatic, Quota: n, Namespaces: nil,
			Ranges: []netipx.IPRange{netipx.IPRangeFrom(first, last)}},
		{Name: "rest", Allocation: cluster.Automatic,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("10.8.0.0-10.15.255.255")}},
	}}
	for i := range n {
		s.Services = s.Services.With(cluster.Service{Spec: &cluster.Spec{
			Name:       cluster.Name{Namespace: fmt.Sprintf("ns%02d", i%50), Name: fmt.Sprintf("s%05d", i)},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		}})
	}
	return s
}

// settledAtScale is atScale with what a controller has written.
func settledAtScale(n int) *cluster.Snapshot {
	s := atScale(n)
	assigned, _ := allocateAll(s)
	for _, a := range assigned {
		s.Service(a.Service).Status = []netip.Addr{a.Addr}
		s.Claims = s.Claims.With(&cluster.Claim{
			Addr: a.Addr, Pool: a.Pool, Holders: []cluster.Holder{{Name: a.Service}},
		})
	}
	s.Assignments = cluster.AssignmentSet(assigned...)
	return s
}

// BenchmarkStart is a full start: without Claims, every Service must be placed; with
// Claims, every Service is checked and keeps its addresses.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{10_000, 50_000} {
		nothing, claims := atScale(n), settledAtScale(n)
		b.Run(fmt.Sprintf("nothing/%d", n), func(b *testing.B) {
			for b.Loop() {
				if as, _ := allocateAll(nothing); len(as) != n {
					b.Fatal(len(as))
				}
			}
		})
		b.Run(fmt.Sprintf("claims/%d", n), func(b *testing.B) {
			for b.Loop() {
				if as, _ := allocateAll(claims); len(as) != n {
					b.Fatal(len(as))
				}
			}
		})
	}
}

// BenchmarkChange is one change among many Services: one that comes, one that waits
// for an address of a full pool, and a Namespace's labels.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{10_000, 50_000} {
		snap := settledAtScale(n)
		allocator := NewAllocator(snap, Settled)
		comes := func(pool string) *cluster.Snapshot {
			next := *snap
			spec := &cluster.Spec{
				Name: cluster.Name{Namespace: "ns25", Name: "new"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			}
			if pool != "" {
				spec.RequestedPools = []string{pool}
			}
			next.Services = snap.Services.With(cluster.Service{Spec: spec})
			return &next
		}
		labelled := *snap
		labelled.Namespaces = []*cluster.Namespace{{Name: "ns25"}}
		for what, next := range map[string]*cluster.Snapshot{
			"comes": comes(""), "waits": comes("first"), "namespace": &labelled,
		} {
			b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) {
				for b.Loop() {
					allocator.Next(next).Allocate(time.Time{})
				}
			})
		}
	}
}
