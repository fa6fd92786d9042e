package proxy

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

func benchProxy(b *testing.B) *Proxy {
	b.Helper()
	nstest.Isolate(b)
	p, err := New(b.Context(), Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close() })
	return p
}

const benchVIPs = 10_000

// The same with each iptables: all of 10,000 VIPs into an empty kernel, then one
// endpoint of one, and a full check.
func BenchmarkIPTables(b *testing.B) {
	path := os.Getenv("PATH")
	for _, backend := range xtBackends {
		b.Run(backend, func(b *testing.B) {
			b.Cleanup(func() { os.Setenv("PATH", path) })
			nstest.Isolate(b)
			onlyPrograms(b, backend)
			p, err := New(b.Context(), Options{
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Mode: ModeIPTables,
			})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { p.Close() })
			s := proxytest.BenchState(benchVIPs)
			s.Owned = proxytest.Prefixes("198.18.0.0/15")
			start := time.Now()
			mustSet(b, p, s)
			full := time.Since(start)
			start = time.Now()
			p.Recheck()
			mustSet(b, p, s)
			check := time.Since(start)
			replaceOne(b, p, s)
			// Loop forgets what was reported before.
			b.ReportMetric(float64(full.Milliseconds()), "full-ms")
			b.ReportMetric(float64(check.Milliseconds()), "check-ms")
		})
	}
}

// replaceOne replaces one endpoint of one VIP again and again.
func replaceOne(b *testing.B, p *Proxy, s State) {
	version := 0
	for b.Loop() {
		version++
		next := s
		next.VIPs = proxytest.WithVIPs(s.VIPs, proxytest.BenchVIP(benchVIPs/2, version))
		mustSet(b, p, next)
		s = next
	}
}

// One endpoint of one of 10,000 VIPs is replaced.
func BenchmarkSetOneEndpoint(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	mustSet(b, p, s)
	replaceOne(b, p, s)
}

// benchSources gives every other VIP ten sources that may use it.
func benchSources(s State) State {
	var ten []netip.Prefix
	for i := range 10 {
		ten = append(ten, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
	}
	for i := 0; i < s.VIPs.Len(); i += 2 {
		s.VIPs.At(i).Frontends[0].Sources = ten
	}
	return s
}

// One endpoint of one of 10,000 VIPs is replaced, and half of the others let in
// ten sources each.
func BenchmarkSetOneEndpointBesideSources(b *testing.B) {
	p := benchProxy(b)
	s := benchSources(proxytest.BenchState(benchVIPs))
	mustSet(b, p, s)
	version := 0
	for b.Loop() {
		version++
		next := s
		next.VIPs = proxytest.WithVIPs(s.VIPs, proxytest.BenchVIP(benchVIPs/2+1, version))
		mustSet(b, p, next)
		s = next
	}
}

// One of 5,000 VIPs that let in ten sources each lets in one less, or one more:
// the kernel copies the whole set for that.
func BenchmarkSetOneSource(b *testing.B) {
	p := benchProxy(b)
	s := benchSources(proxytest.BenchState(benchVIPs))
	mustSet(b, p, s)
	fewer := proxytest.BenchVIP(0, 0)
	fewer.Frontends[0].Sources = s.VIPs.At(0).Frontends[0].Sources[1:]
	both := [2]*VIP{fewer, s.VIPs.At(0)}
	n := 0
	for b.Loop() {
		next := s
		next.VIPs = proxytest.WithVIPs(s.VIPs, both[n%2])
		n++
		mustSet(b, p, next)
		s = next
	}
}

// The number of endpoints of one VIP changes, and so the chain that it goes to:
// the kernel checks all verdicts again.
func BenchmarkSetOneCount(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	mustSet(b, p, s)
	one := proxytest.BenchVIP(benchVIPs/2, 0)
	one.Frontends[0].External.Backends = one.Frontends[0].External.Backends[:1]
	both := [2]*VIP{one, proxytest.BenchVIP(benchVIPs/2, 0)}
	n := 0
	for b.Loop() {
		next := s
		next.VIPs = proxytest.WithVIPs(s.VIPs, both[n%2])
		n++
		mustSet(b, p, next)
		s = next
	}
}

// Nothing changed.
func BenchmarkSetSame(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	mustSet(b, p, s)
	for b.Loop() {
		mustSet(b, p, s)
	}
}

// All of 10,000 VIPs into an empty kernel: rules, elements, and a walk through
// conntrack.
func BenchmarkSetFull(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	for b.Loop() {
		mustSet(b, p, s)
		b.StopTimer()
		if err := Cleanup(b.Context()); err != nil {
			b.Fatal(err)
		}
		p.rules.have = State{}
		p.rules.known = false
		b.StartTimer()
	}
}

// A full check that finds nothing wrong.
func BenchmarkSetRecheck(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	mustSet(b, p, s)
	for b.Loop() {
		p.Recheck()
		mustSet(b, p, s)
	}
}

// Another schema's table, with 10,000 VIPs, is replaced through nft.
func BenchmarkReplaceSchema(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	mustSet(b, p, s)
	for b.Loop() {
		p.rules.known = false
		proxytest.NFT(b, "add chain inet fanfare schema-0") // the later of two counts
		mustSet(b, p, s)
	}
}

// A look for what is in the way, beside 10,000 VIPs, on a node whose iptables-nft has the
// 20,000 chains of a kube-proxy and a firewall that accepts.
func BenchmarkLook(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	mustSet(b, p, s)
	var rules strings.Builder
	rules.WriteString("table ip nat {\n")
	for i := range 2 * benchVIPs {
		fmt.Fprintf(&rules, "chain KUBE-SEP-%d { ip saddr 10.0.0.1 return; meta l4proto tcp dnat to 10.0.0.1; }\n", i)
	}
	rules.WriteString("}\ntable inet filter { chain forward { type filter hook forward priority 0; policy drop; ct " +
		"state established,related accept; ct status dnat accept; }; }\n")
	proxytest.NFT(b, rules.String())
	for b.Loop() {
		if look := obstacle.Collect(s, &obstacle.Counter{}); len(look.Unseen) > 0 {
			b.Fatal(look.Unseen)
		} else {
			look.Judge(obstacle.PriorityNFTables)
		}
	}
}

// BenchmarkSetBesideConntrack is a pool that comes and goes, with a change of one endpoint, among 10,000 VIPs
// and 100,000 conntrack entries of other flows: the time of the change, and until the pool's
// addresses may be announced.
func BenchmarkSetBesideConntrack(b *testing.B) {
	p := benchProxy(b)
	s := proxytest.BenchState(benchVIPs)
	s.Owned = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16")}
	mustSet(b, p, s)
	const entries = 100_000
	proxytest.FillConntrack(b, 0, entries)
	flows := 0
	if _, err := conntrack.ListFlows(p.sock, conntrack.Request{Family: unix.AF_INET},
		func(*conntrack.Flow) bool { flows++; return false }); err != nil || flows < entries {
		b.Fatalf("%d entries, %v", flows, err)
	}
	var until time.Duration
	for i := 0; b.Loop(); i++ {
		s.VIPs = proxytest.WithVIPs(s.VIPs, proxytest.BenchVIP(0, i+1))
		s.Owned = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16")}
		if i%2 == 0 {
			s.Owned = append(s.Owned, netip.MustParsePrefix("198.19.0.0/24"))
		}
		began := time.Now()
		if err := p.Set(b.Context(), s); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		prepared(p)
		until += time.Since(began)
		b.StartTimer()
	}
	b.ReportMetric(float64(until.Microseconds())/float64(b.N)/1e3, "ms-until-prepared/op")
}
