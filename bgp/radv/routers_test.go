package radv

import (
	"net/netip"
	"testing"
	"time"
)

func TestRouters(t *testing.T) {
	type step struct {
		at            time.Duration
		from          string
		chosen, other string
		changed       bool
	}
	for name, steps := range map[string][]step{
		"one router": {
			{0, "fe80::1", "fe80::1", "", true},
			{10 * time.Second, "fe80::1", "fe80::1", "", false},
			{time.Hour, "fe80::1", "fe80::1", "", false},
		},
		"another host does not take its place": {
			{0, "fe80::1", "fe80::1", "", true},
			{5 * time.Second, "fe80::66", "fe80::1", "fe80::66", true},
			{6 * time.Second, "fe80::66", "fe80::1", "fe80::66", false},
			{10 * time.Second, "fe80::1", "fe80::1", "fe80::66", false},
			{44 * time.Second, "fe80::66", "fe80::1", "fe80::66", false},
		},
		"many hosts are reported as one": {
			{0, "fe80::1", "fe80::1", "", true},
			{time.Second, "fe80::66", "fe80::1", "fe80::66", true},
			{2 * time.Second, "fe80::67", "fe80::1", "fe80::66", false},
		},
		"a new router takes the place of a silent one": {
			{0, "fe80::1", "fe80::1", "", true},
			{30 * time.Second, "fe80::2", "fe80::1", "fe80::2", true},
			{36 * time.Second, "fe80::2", "fe80::2", "", true},
			{46 * time.Second, "fe80::2", "fe80::2", "", false},
		},
		"another host that has left is forgotten": {
			{0, "fe80::1", "fe80::1", "", true},
			{time.Second, "fe80::66", "fe80::1", "fe80::66", true},
			{30 * time.Second, "fe80::1", "fe80::1", "fe80::66", false},
			{40 * time.Second, "fe80::1", "fe80::1", "", true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin, r := time.Now(), routers{}
			for _, s := range steps {
				changed := r.received(addr(s.from), begin.Add(s.at))
				if r.chosen != addr(s.chosen) || r.other != addr(s.other) || changed != s.changed {
					t.Errorf("after %s, %s: chosen %s, other %s, changed %v; want %+v", s.at, s.from, r.chosen, r.other,
						changed, s)
				}
			}
		})
	}
}

// addr is invalid for an empty text.
func addr(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}
