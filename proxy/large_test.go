package proxy

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// largeBackends are n endpoints, every third on another node.
func largeBackends(n int) []Backend {
	all := make([]Backend, n)
	for i := range all {
		all[i] = Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1 + byte(i>>16), byte(i >> 8), byte(i)}), 8080), Node: "n1"}
		if i%3 == 0 {
			all[i].Node = "n2"
		}
	}
	return all
}

// largeVIP has so many ports with so many backends each.
func largeVIP(ports, backends int, s Scheduler) *VIP {
	v := &VIP{Addr: netip.MustParseAddr("192.0.2.1")}
	to := Target{Backends: largeBackends(backends)}
	for i := range ports {
		v.Frontends = append(v.Frontends, Frontend{Protocol: TCP, Port: uint16(1 + i), External: to, Internal: Target{Backends: to.Backends, Remote: Preserve}, Scheduler: s})
	}
	return v
}

// Addresses that need several transactions reach the kernel, change there and go again.
// BenchmarkLargestAddresses does it with the largest.
func TestLargeAddresses(t *testing.T) {
	for _, c := range []struct {
		name string
		v    *VIP
	}{
		{"500 ports with maglev", largeVIP(500, 2, Maglev)},
		{"20,000 endpoints of one port", largeVIP(1, 20000, Random)},
		{"5,000 ports", largeVIP(5000, 2, Random)},
		{"500 ports with round robin", largeVIP(500, 2, RoundRobin)},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T) {
				p := newProxy(t)
				other := benchVIP(0, 0)
				set := func(vips ...*VIP) {
					t.Helper()
					mustSet(t, p, State{Node: "n1", VIPs: vips})
				}
				endpoints := func(want int) {
					t.Helper()
					if all, err := readSet(p.sock, state.SetExtEps); err != nil || len(all) != want+2 {
						t.Fatalf("%d endpoints of external clients in the kernel, %v; want %d", len(all), err, want+2)
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
				checkKernel(t, State{Node: "n1", VIPs: []*VIP{other}})
			})
		})
	}
}

// without is v without one endpoint of each port.
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
		{"maglev-2600-ports", largeVIP(2600, 2, Maglev)},
		{"maglev-3800-ports", largeVIP(3800, 2, Maglev)},
		{"endpoints-60000", largeVIP(1, 60000, Random)},
		{"ports-10000", largeVIP(10000, 2, Random)},
		{"round-robin-4096-ports", largeVIP(4096, 2, RoundRobin)},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := benchProxy(b)
			mustSet(b, p, State{Node: "n1"})
			var took [3]time.Duration
			for b.Loop() {
				for i, vips := range [][]*VIP{{c.v}, {withoutPorts(c.v, 0)}, nil} {
					start := time.Now()
					mustSet(b, p, State{Node: "n1", VIPs: vips})
					took[i] += time.Since(start)
				}
			}
			for i, what := range []string{"comes-ms", "changes-ms", "goes-ms"} {
				b.ReportMetric(float64(took[i].Milliseconds())/float64(b.N), what)
			}
		})
	}
}
