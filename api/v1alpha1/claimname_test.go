package v1alpha1

import (
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

var claimNames = []struct{ addr, name string }{
	{"192.0.2.10", "192.0.2.10"},
	{"0.0.0.0", "0.0.0.0"},
	{"255.255.255.255", "255.255.255.255"},
	{"2001:db8::10", "2001-db8--10"},
	{"::1", "0--1"},
	{"::", "0--0"},
	{"2001:db8::", "2001-db8--0"},
	{"1:2:3:4:5:6:7:0", "1-2-3-4-5-6-7-0"},
	{"0:2:3:4:5:6:7:8", "0-2-3-4-5-6-7-8"},
	{"::3:4:5:6:7:8", "0--3-4-5-6-7-8"},
	{"1:2:3:4:5:6::", "1-2-3-4-5-6--0"},
	{"fe80::1:0:0:1", "fe80--1-0-0-1"},
	{"::ffff:192.0.2.1", "0--ffff-192.0.2.1"},
}

func TestClaimName(t *testing.T) {
	for _, tt := range claimNames {
		a := netip.MustParseAddr(tt.addr)
		if got := ClaimName(a); got != tt.name {
			t.Errorf("ClaimName(%s) = %s, want %s", a, got, tt.name)
		}
		if got, err := ClaimAddress(tt.name); err != nil || got != a {
			t.Errorf("ClaimAddress(%s) = %s, %v, want %s", tt.name, got, err, a)
		}
	}
}

func TestClaimAddressRefuses(t *testing.T) {
	for name, want := range map[string]string{
		"":                    "is not an address",
		"web":                 "is not an address",
		"192.0.2.010":         "is not an address",
		"192.0.2.1-":          "is not an address",
		"2001-db8-10":         "is not an address",
		"fe80--1%eth0":        "is not an address",
		"--1":                 "it must be 0--1",
		"2001-db8--":          "it must be 2001-db8--0",
		"2001-DB8--10":        "it must be 2001-db8--10",
		"2001:db8::10":        "it must be 2001-db8--10",
		"2001-db8-0-0--10":    "it must be 2001-db8--10",
		"0-0-0-0-0-0-0-1":     "it must be 0--1",
		"2001-db8--0010":      "it must be 2001-db8--10",
		"0--ffff-c000-201":    "it must be 0--ffff-192.0.2.1",
		"1-2-3-4-5-6-7--":     "it must be 1-2-3-4-5-6-7-0",
		"0-0--ffff-192.0.2.1": "it must be 0--ffff-192.0.2.1",
	} {
		if a, err := ClaimAddress(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ClaimAddress(%q) = %s, %v, want %q", name, a, err, want)
		}
	}
}

// Every address has one name that the API server takes, and no other.
func FuzzClaimName(f *testing.F) {
	for _, tt := range claimNames {
		a := netip.MustParseAddr(tt.addr)
		f.Add(a.AsSlice(), tt.name)
	}
	f.Fuzz(func(t *testing.T, ip []byte, name string) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			n := ClaimName(a)
			if errs := validation.IsDNS1123Subdomain(n); len(errs) != 0 {
				t.Errorf("%s: %s: %v", a, n, errs)
			}
			if b, err := ClaimAddress(n); err != nil || a != b {
				t.Errorf("%s is named %s, which names %s, %v", a, n, b, err)
			}
		}
		if a, err := ClaimAddress(name); err == nil && ClaimName(a) != name {
			t.Errorf("%s names %s, which is named %s", name, a, ClaimName(a))
		}
	})
}
