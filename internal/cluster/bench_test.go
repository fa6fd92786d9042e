package cluster

import (
	"fmt"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

const many = 10_000

// BenchmarkBuilderOneSlice is the snapshot after one change, without files.
func BenchmarkBuilderOneSlice(b *testing.B) {
	builder := NewBuilder()
	for i := range many {
		builder.Set(clustertest.Service(fmt.Sprintf("s%05d", i)), "")
		builder.Set(clustertest.EndpointSlice(fmt.Sprintf("s%05d-1", i), fmt.Sprintf("s%05d", i), "10.0.0.1",
			"10.0.0.2"), "")
	}
	builder.Snapshot()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		builder.Set(clustertest.EndpointSlice("s05000-1", "s05000", "10.0.0.1", fmt.Sprintf("10.0.1.%d", n%250)), "")
		builder.Snapshot()
	}
}

// BenchmarkBuilderOneService is what the controller's writes for one Service
// cost: a snapshot with its claim, and one with its status.
func BenchmarkBuilderOneService(b *testing.B) {
	builder := NewBuilder()
	addr := func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&255, i&255) }
	for i := range many {
		builder.Set(clustertest.Service(fmt.Sprintf("s%05d", i), addr(i)), "")
		builder.Set(clustertest.Claim(addr(i), fmt.Sprintf("s%05d", i)), "")
	}
	builder.Snapshot()
	b.ReportAllocs()
	for b.Loop() {
		builder.Delete(Key{"AddressClaim", Name{Name: addr(5000)}})
		builder.Set(clustertest.Service("s05000"), "")
		builder.Snapshot()
		builder.Set(clustertest.Claim(addr(5000), "s05000"), "")
		builder.Snapshot()
		builder.Set(clustertest.Service("s05000", addr(5000)), "")
		builder.Snapshot()
	}
}
