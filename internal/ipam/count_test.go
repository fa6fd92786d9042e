package ipam

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// count holds Count against what can be given.
func count(t *testing.T, p *cluster.Pool) {
	t.Helper()
	for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		given := slices.Collect(newSpace(p, f == corev1.IPv4Protocol).positions(cluster.Name{Name: "web"}))
		if got := Count(p, f); got != int64(len(given)) {
			t.Errorf("%+v: %d %s addresses, want %d", p, got, f, len(given))
		}
		if slices.ContainsFunc(given, func(a netip.Addr) bool { return !Gives(p, a) }) {
			t.Errorf("%+v: gives what it does not give", p)
		}
	}
}

func TestCount(t *testing.T) {
	for _, ranges := range [][]string{
		{"192.0.2.0-192.0.2.255"}, {"192.0.2.255-192.0.3.0"}, {"192.0.2.1-192.0.2.254"}, {"192.0.2.0-192.0.2.0"},
		{"192.0.2.7-192.0.9.255", "10.0.0.0-10.0.1.0"}, {"2001:db8::-2001:db8::ff", "192.0.2.0-192.0.2.3"},
	} {
		for _, avoid := range []bool{false, true} {
			p := &cluster.Pool{AvoidBuggyIPs: avoid}
			for _, r := range ranges {
				p.Ranges = append(p.Ranges, netipx.MustParseIPRange(r))
			}
			first := p.Ranges[0]
			for _, node := range []netipx.IPRange{{}, first, netipx.IPRangeFrom(first.From(), first.From()),
				netipx.IPRangeFrom(first.To(), first.To())} {
				if p.Occupied = nil; node.IsValid() {
					p.Occupied = []cluster.Occupied{{Range: node, By: "Node n1"}}
				}
				count(t, p)
			}
		}
	}
	big := &cluster.Pool{Ranges: []netipx.IPRange{netipx.MustParseIPRange("2001:db8::-2001:db8:ffff::")}}
	if got := Count(big, corev1.IPv6Protocol); got != math.MaxInt64 {
		t.Errorf("%d addresses in a /32", got)
	}
}
