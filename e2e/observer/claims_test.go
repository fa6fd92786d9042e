package observer

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// A node claims an address from one claim to the next, if that comes soon enough.
func TestClaimCoverage(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	series := func(node string, from, to int) (all []claim) {
		for ms := from; ms <= to; ms += 20 {
			all = append(all, claim{at(ms), node})
		}
		return all
	}
	for name, tt := range map[string]struct {
		claims        [][]claim
		several, none time.Duration
	}{
		"one":  {[][]claim{series("n1", 0, 1000)}, 0, 0},
		"none": {nil, 0, 1000 * time.Millisecond},
		"two, one after the other": {[][]claim{series("n1", 0, 400), series("n2", 700, 1000)}, 0,
			300 * time.Millisecond},
		"two": {[][]claim{series("n1", 0, 600), series("n2", 400, 1000)}, 200 * time.Millisecond,
			0},
		"three": {[][]claim{series("n1", 0, 600), series("n2", 400, 1000), series("n3", 500, 700)},
			300 * time.Millisecond, 0},
		"one claim":    {[][]claim{series("n1", 0, 1000), series("n2", 500, 500)}, 0, 0},
		"answers late": {[][]claim{series("n1", 0, 400), series("n1", 600, 1000)}, 0, 0},
		"before and after": {[][]claim{series("n2", -500, -20), series("n1", 0, 1000), series("n2", 1020, 1500)},
			0, 0},
	} {
		var list []claim
		for _, c := range tt.claims {
			list = append(list, c...)
		}
		if several, none := coverage(list, at(0), at(1000)); several != tt.several || none != tt.none {
			t.Errorf("%s: several for %s, none for %s; want %s, %s", name, several, none, tt.several, tt.none)
		}
	}
}

// A claim counts until enough further requests were sent.
func TestClaimsNeedRecentRequests(t *testing.T) {
	for _, f := range claimFamilies {
		t.Run(f.name, func(t *testing.T) {
			vip, other := netip.MustParseAddr("198.51.100.200"), netip.MustParseAddr("198.51.100.201")
			if !f.is4 {
				vip, other = netip.MustParseAddr("2001:db8:51::200"), netip.MustParseAddr("2001:db8:51::201")
			}
			c := &Claims{
				log: func(claimEvent) {}, node: map[string]string{"02:00:00:00:00:01": "n1"},
				of: map[netip.Addr][]claim{vip: nil},
			}
			began := time.Now().Add(-10 * time.Second)
			for _, x := range []struct {
				at  time.Duration
				vip netip.Addr
				mac byte
			}{{time.Second, vip, 1}, {2 * time.Second, vip, 7}, {2 * time.Second, other, 1},
				{10 * time.Second, vip, 1}} {
				c.record(f, began.Add(x.at), claiming(x.vip, x.mac))
			}
			c.record(f, time.Now(), nil) // a frame that is no claim
			if _, err := c.Now(vip, began); err == nil {
				t.Error("no request was sent, but the claimants are known")
			}
			for ms := 0; ms <= 10_000; ms += 20 {
				c.requested = append(c.requested, began.Add(time.Duration(ms)*time.Millisecond))
			}
			if got, err := c.Now(vip, began); fmt.Sprint(got) != "[n1]" || err != nil {
				t.Errorf("claimed by %v, %v", got, err)
			}
			if _, err := c.Now(vip, began.Add(9900*time.Millisecond)); err == nil {
				t.Error("only five requests were sent since, but the claimants are known")
			}
			if got := claimants(c.of[vip], began); fmt.Sprint(got) != "[02:00:00:00:00:07 n1]" {
				t.Errorf("claimed by %v", got)
			}
			if _, ours := c.of[other]; ours {
				t.Error("a claim of an address without requests was recorded")
			}
		})
	}
}

// claiming returns a frame by which a host claims an address.
func claiming(vip netip.Addr, mac byte) []byte {
	here := []byte{2, 0, 0, 0, 0, mac}
	if vip.Is4() {
		f := arpRequest(vip)
		copy(f[22:], here)
		copy(f[28:], vip.AsSlice())
		return f
	}
	f := solicitation(vip)
	f[messageAt], f[optionAt] = neighborAdvertisement, 2
	copy(f[optionAt+2:], here)
	return f
}
