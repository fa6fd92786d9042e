package sortedset

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestMinus(t *testing.T) {
	set := func(last ...byte) (out []netip.Addr) {
		for _, b := range last {
			out = append(out, netip.AddrFrom4([4]byte{192, 0, 2, b}))
		}
		return out
	}
	for _, row := range []struct{ a, b, minus []netip.Addr }{
		{set(), set(), set()},
		{set(1, 2, 3), set(), set(1, 2, 3)},
		{set(), set(1, 2), set()},
		{set(1, 2, 3), set(2, 4), set(1, 3)},
		{set(1, 2), set(1, 2), set()},
		{set(1, 2, 3), set(1), set(2, 3)}, // the first go: no copy
		{set(1, 2, 3), set(0, 1, 2), set(3)},
		{set(1, 2, 3, 4), set(1, 3), set(2, 4)},
		{set(1, 2, 3, 4), set(3, 4), set(1, 2)},
	} {
		if got := Minus(row.a, row.b); !slices.Equal(got, row.minus) {
			t.Errorf("minus(%v, %v) = %v, want %v", row.a, row.b, got, row.minus)
		}
	}
}

// The operations equal those on maps, write to neither list, and return one of them if it is the
// result.
func TestRandomSets(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 0))
		random := func() (set []netip.Addr) {
			chance := r.IntN(5)
			for last := range byte(12) {
				if r.IntN(4) < chance {
					set = append(set, netip.AddrFrom4([4]byte{192, 0, 2, last}))
				}
			}
			return set
		}
		a, b := random(), random()
		wasA, wasB := slices.Clone(a), slices.Clone(b)
		want := map[string][]netip.Addr{}
		for last := range byte(12) {
			addr := netip.AddrFrom4([4]byte{192, 0, 2, last})
			inA, inB := slices.Contains(a, addr), slices.Contains(b, addr)
			for name, in := range map[string]bool{"minus": inA && !inB, "union": inA || inB} {
				if in {
					want[name] = append(want[name], addr)
				}
			}
		}
		for name, got := range map[string][]netip.Addr{"minus": Minus(a, b), "union": Union(a, b)} {
			if !slices.Equal(got, want[name]) {
				t.Fatalf("seed %d: %s(%v, %v) = %v, want %v", seed, name, a, b, got, want[name])
			}
			if slices.Equal(got, a) && !Same(got, a) {
				t.Fatalf("seed %d: %s(%v, %v) is a copy", seed, name, a, b)
			}
		}
		if !slices.Equal(a, wasA) || !slices.Equal(b, wasB) {
			t.Fatalf("seed %d: the lists were written to", seed)
		}
	}
}

func TestCoveredAndHolding(t *testing.T) {
	for _, row := range []struct{ addrs, prefixes, covered, holding string }{
		{"", "", "", ""},
		{"192.0.2.1", "", "", ""},
		{"", "192.0.2.0/24", "", ""},
		{"192.0.2.1 192.0.2.5", "192.0.2.1/32 192.0.2.2/32", "192.0.2.1", "192.0.2.1/32"},
		{"192.0.2.1 192.0.2.5 192.0.2.9", "192.0.2.0/24 192.0.2.4/30", "192.0.2.1 192.0.2.5 192.0.2.9",
			"192.0.2.0/24 192.0.2.4/30"},
		{"192.0.2.1 192.0.2.5 192.0.2.9", "192.0.2.0/30 192.0.2.2/31 192.0.2.8/31", "192.0.2.1 192.0.2.9",
			"192.0.2.0/30 192.0.2.8/31"},
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
		if got := text(Minus(addrs, Uncovered(AddrSet(addrs...), PrefixSet(prefixes...)))); got != row.covered {
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

func TestContainsAddr(t *testing.T) {
	for _, row := range []struct {
		prefixes, addr string
		want           bool
	}{
		{"", "192.0.2.1", false},
		{"2001:db8::/64 192.0.2.0/24", "192.0.2.1", true},
		{"192.0.2.9/24", "192.0.2.1", true}, // an interface's
		{"192.0.2.1/32", "192.0.2.2", false},
		{"192.0.2.0/24", "::ffff:192.0.2.1", false},
		{"fe80::/64", "fe80::1%eth0", false},
	} {
		var prefixes []netip.Prefix
		for s := range strings.FieldsSeq(row.prefixes) {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		if got := ContainsAddr(prefixes, netip.MustParseAddr(row.addr)); got != row.want {
			t.Errorf("%q contain %s: %t", row.prefixes, row.addr, got)
		}
	}
}
