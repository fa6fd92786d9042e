package proxy

import (
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Addresses that need several transactions reach the kernel, change there and go again.
// BenchmarkLargestAddresses does it with the largest.
func TestLargeAddresses(t *testing.T) {
	for _, c := range []struct {
		name string
		v    *VIP
	}{
		{"500 ports with maglev", proxytest.LargeVIP(500, 2, Maglev)},
		{"20,000 endpoints of one port", proxytest.LargeVIP(1, 20000, Random)},
		{"5,000 ports", proxytest.LargeVIP(5000, 2, Random)},
		{"500 ports with round robin", proxytest.LargeVIP(500, 2, RoundRobin)},
	} {
		t.Run(c.name, func(t *testing.T) {
			proxytest.InNamespace(t, func(t *testing.T) {
				p := newProxy(t)
				other := proxytest.BenchVIP(0, 0)
				set := func(vips ...*VIP) {
					t.Helper()
					mustSet(t, p, State{Node: "n1", VIPs: proxytest.VIPsOf(vips...)})
				}
				endpoints := func(want int) {
					t.Helper()
					if all := proxytest.ReadSet(t, state.SetExtEps); len(all) != want+2 {
						t.Fatalf("%d endpoints of external clients in the kernel; want %d", len(all), want+2)
					}
				}
				ports, all := len(c.v.Frontends), 0
				for i := range c.v.Frontends {
					all += len(c.v.Frontends[i].External.Backends)
				}
				set(c.v, other)
				endpoints(all)
				set(withoutPorts(c.v, 0), other)
				endpoints(all - ports)
				set(other)
				checkKernel(t, State{Node: "n1", VIPs: proxytest.VIPsOf(other)})
			})
		})
	}
}

// withoutPorts is v without one endpoint of each port.
func withoutPorts(v *VIP, i int) *VIP {
	out := &VIP{Addr: v.Addr, Frontends: slices.Clone(v.Frontends)}
	for f := range out.Frontends {
		to := slices.Delete(slices.Clone(out.Frontends[f].External.Backends), i, i+1)
		out.Frontends[f].External.Backends, out.Frontends[f].Internal.Backends = to, to
	}
	return out
}

// The largest addresses of each kind that a Service may plausibly have come, lose an endpoint
// of each port, and go.
func BenchmarkLargestAddresses(b *testing.B) {
	for _, c := range []struct {
		name string
		v    *VIP
	}{
		{"maglev-2600-ports", proxytest.LargeVIP(2600, 2, Maglev)},
		{"maglev-3800-ports", proxytest.LargeVIP(3800, 2, Maglev)},
		{"endpoints-60000", proxytest.LargeVIP(1, 60000, Random)},
		{"ports-10000", proxytest.LargeVIP(10000, 2, Random)},
		{"round-robin-4096-ports", proxytest.LargeVIP(4096, 2, RoundRobin)},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := benchProxy(b)
			mustSet(b, p, State{Node: "n1"})
			var took [3]time.Duration
			for b.Loop() {
				for i, vips := range [][]*VIP{{c.v}, {withoutPorts(c.v, 0)}, nil} {
					start := time.Now()
					mustSet(b, p, State{Node: "n1", VIPs: proxytest.VIPsOf(vips...)})
					took[i] += time.Since(start)
				}
			}
			for i, what := range []string{"comes-ms", "changes-ms", "goes-ms"} {
				b.ReportMetric(float64(took[i].Milliseconds())/float64(b.N), what)
			}
		})
	}
}
