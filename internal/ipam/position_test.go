package ipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// positions yields every address once, in a ring that starts at home.
func TestPositions(t *testing.T) {
	pool := &cluster.Pool{AvoidBuggyIPs: true, Ranges: []netipx.IPRange{
		netipx.MustParseIPRange("192.0.3.250-192.0.4.3"), netipx.MustParseIPRange("192.0.2.7-192.0.2.9"),
		netipx.MustParseIPRange("2001:db8::-2001:db8::5"),
	}}
	for n, ipv4 := range map[int]bool{11: true, 6: false} {
		s := newSpace(pool, ipv4)
		starts := map[netip.Addr]bool{}
		for i := range 200 {
			name := cluster.Name{Namespace: "default", Name: fmt.Sprint("s", i)}
			got := slices.Collect(s.positions(name))
			starts[s.home(name)] = true
			if got[0] != s.home(name) || len(got) != n {
				t.Fatalf("%s: %d positions, want %d", name, len(got), n)
			}
			slices.SortFunc(got, netip.Addr.Compare)
			if len(slices.Compact(got)) != n {
				t.Fatalf("%s: one position twice", name)
			}
			if slices.ContainsFunc(got, func(a netip.Addr) bool { return !pool.Contains(a) || a.Is4() && buggy(a) }) {
				t.Fatalf("%s: %v", name, got)
			}
		}
		if len(starts) != n {
			t.Errorf("200 names have %d homes, want all %d", len(starts), n)
		}
	}
}

// The position is a promise between versions of Fanfare.
func TestPositionsAreStable(t *testing.T) {
	for pool, want := range map[string]string{
		"192.0.2.0-192.0.2.255":                          "192.0.2.151",
		"10.0.0.0-10.255.255.255":                        "10.151.55.86",
		"2001:db8::-2001:db8:ffff:ffff:ffff::":           "2001:db8:9737:5646:b1de:1c9b:7f7d:54ee",
		"2000::-3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": "32e6:eac8:d63b:d67a:5ab8:80d9:a2ae:a006",
	} {
		s := newSpace(&cluster.Pool{Ranges: []netipx.IPRange{netipx.MustParseIPRange(pool)}}, pool[0] == '1')
		if got := s.home(cluster.Name{Namespace: "shop", Name: "web"}).String(); got != want {
			t.Errorf("%s: shop/web is at %s, want %s", pool, got, want)
		}
	}
}

func FuzzFraction(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0), uint64(1))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0))
	f.Add(uint64(1)<<63, uint64(0), uint64(0), uint64(256))
	f.Fuzz(func(t *testing.T, uh, ul, sh, sl uint64) {
		u, size := uint128{uh, ul}, uint128{sh, sl}
		got := u.fraction(size)
		want := bigUint(u)
		want.Rsh(want.Mul(want, bigUint(size)), 128)
		if bigUint(got).Cmp(want) != 0 {
			t.Errorf("%v.fraction(%v) = %v, want %v", u, size, got, want)
		}
	})
}

func bigUint(u uint128) *big.Int {
	n := new(big.Int).SetUint64(u.hi)
	return n.Add(n.Lsh(n, 64), new(big.Int).SetUint64(u.lo))
}
