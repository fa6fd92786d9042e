package sortedset

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestMinusAndIntersect(t *testing.T) {
	set := func(last ...byte) (out []netip.Addr) {
		for _, b := range last {
			out = append(out, netip.AddrFrom4([4]byte{192, 0, 2, b}))
		}
		return out
	}
	for _, row := range []struct{ a, b, minus, both []netip.Addr }{
		{set(), set(), set(), set()},
		{set(1, 2, 3), set(), set(1, 2, 3), set()},
		{set(), set(1, 2), set(), set()},
		{set(1, 2, 3), set(2, 4), set(1, 3), set(2)},
		{set(1, 2), set(1, 2), set(), set(1, 2)},
	} {
		if got := Minus(row.a, row.b); !slices.Equal(got, row.minus) {
			t.Errorf("minus(%v, %v) = %v, want %v", row.a, row.b, got, row.minus)
		}
		if got := Intersect(row.a, row.b); !slices.Equal(got, row.both) {
			t.Errorf("intersect(%v, %v) = %v, want %v", row.a, row.b, got, row.both)
		}
	}
}

func TestCoveredAndHolding(t *testing.T) {
	for _, row := range []struct{ addrs, prefixes, covered, holding string }{
		{"", "", "", ""},
		{"192.0.2.1", "", "", ""},
		{"", "192.0.2.0/24", "", ""},
		{"192.0.2.1 192.0.2.5", "192.0.2.1/32 192.0.2.2/32", "192.0.2.1", "192.0.2.1/32"},
		{"192.0.2.1 192.0.2.5 192.0.2.9", "192.0.2.0/24 192.0.2.4/30", "192.0.2.1 192.0.2.5 192.0.2.9", "192.0.2.0/24 192.0.2.4/30"},
		{"192.0.2.1 192.0.2.5 192.0.2.9", "192.0.2.0/30 192.0.2.2/31 192.0.2.8/31", "192.0.2.1 192.0.2.9", "192.0.2.0/30 192.0.2.8/31"},
		{"192.0.2.5 2001:db8::5", "0.0.0.0/0 2001:db8::4/127", "192.0.2.5 2001:db8::5", "0.0.0.0/0 2001:db8::4/127"},
		{"192.0.2.5 2001:db8::5", "192.0.3.0/24 2001:db8:1::/64", "", ""},
	} {
		var addrs []netip.Addr
		for s := range strings.FieldsSeq(row.addrs) {
			addrs = append(addrs, netip.MustParseAddr(s))
		}
		var prefixes []netip.Prefix
		for s := range strings.FieldsSeq(row.prefixes) {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		text := func(list any) string { return strings.Trim(fmt.Sprint(list), "[]") }
		if got := text(Covered(addrs, prefixes)); got != row.covered {
			t.Errorf("%s: %s are in %s, want %s", row.addrs, got, row.prefixes, row.covered)
		}
		if text(addrs) != row.addrs {
			t.Errorf("%s have become %s", row.addrs, addrs)
		}
		if got := text(Holding(prefixes, addrs)); got != row.holding {
			t.Errorf("%s: %s have %s in them, want %s", row.prefixes, got, row.addrs, row.holding)
		}
	}
}

// A pass asks whether all announced addresses are covered, as nearly always.
func TestCoveredAllocatesNothingIfAllAre(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1")}
	prefixes := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128")}
	if n := testing.AllocsPerRun(10, func() { Covered(addrs, prefixes) }); n != 0 {
		t.Errorf("%g allocations: want none", n)
	}
}

func TestHas(t *testing.T) {
	a, b, c := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1")
	set := []netip.Addr{a, c}
	if !Has(set, a) || Has(set, b) || !Has(set, c) || Has(nil, a) {
		t.Error("wrong")
	}
}

func TestRemoveAddrs(t *testing.T) {
	list := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("2001:db8::/127")}
	for _, row := range []struct{ addrs, want string }{
		{"", "[192.0.2.0/30 2001:db8::/127]"},
		{"192.0.2.0", "[192.0.2.1/32 192.0.2.2/31 2001:db8::/127]"},
		{"192.0.2.1 2001:db8::", "[192.0.2.0/32 192.0.2.2/31 2001:db8::1/128]"},
		{"203.0.113.1", "[192.0.2.0/30 2001:db8::/127]"},
	} {
		var addrs []netip.Addr
		for _, a := range strings.Fields(row.addrs) {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		if got := fmt.Sprint(RemoveAddrs(list, addrs)); got != row.want {
			t.Errorf("without %q: %s, want %s", row.addrs, got, row.want)
		}
	}
}
