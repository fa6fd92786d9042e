package ipam

import (
	"net/netip"
	"testing"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// An address that ends in a host part is in the range, does end so, and is found
// again to be what was asked for.
func FuzzHostIn(f *testing.F) {
	for _, s := range [][3]string{
		{"192.0.2.0", "192.0.2.255", "0.0.0.10"}, {"192.0.2.100", "192.0.2.120", "0.0.0.110"},
		{"10.0.0.0", "10.255.255.255", "0.1.2.3"}, {"2001:db8::", "2001:db8::ffff:ffff:ffff:ffff", "::10"},
		{"2001:db8::100", "2001:db8::250", "::10"}, {"2001:db8::5:0", "2001:db8::5:ffff", "::1:10"},
		{"192.0.2.0", "192.0.2.255", "::10"},
		{"192.0.2.1", "192.0.2.1", "0.0.0.1"}, {"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, from, to, part string) {
		a, err1 := netip.ParseAddr(from)
		b, err2 := netip.ParseAddr(to)
		host, err3 := netip.ParseAddr(part)
		r := netipx.IPRangeFrom(a, b)
		if err1 != nil || err2 != nil || err3 != nil || !r.IsValid() || a.Zone() != "" || host.Zone() != "" ||
			a.Is4In6() || b.Is4In6() || !cluster.IsHostPart(host) {
			return
		}
		got, ok := hostIn(r, host)
		if !ok {
			return
		}
		if !r.Contains(got) {
			t.Fatalf("%s in %s is %s", host, r, got)
		}
		// What is not the host part's is the network's.
		if rest := toUint128(got).sub(toUint128(host)); toUint128(got).less(toUint128(host)) ||
			rest.hi&toUint128(host).hi|rest.lo&toUint128(host).lo != 0 {
			t.Fatalf("%s in %s is %s, which does not end so", host, r, got)
		}
		if pools := []*cluster.Pool{{Name: "p", Ranges: []netipx.IPRange{r}}}; !answers(pools, host, got) {
			t.Fatalf("%s in %s is %s, which does not answer it", host, r, got)
		}
	})
}
