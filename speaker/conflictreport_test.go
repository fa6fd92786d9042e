package speaker

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/l2"
)

// A conflict is reported while it lasts, and for a while after the Service has another address: until
// the node answers for the address, or conflictLifetime has passed.
func TestConflictReport(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	other := &l2.Conflict{MAC: l2.MAC{2, 0, 0, 0, 0, 9}, Interface: "eth0"}
	const reported, before = "192.0.2.1 02:00:00:00:00:09 eth0 false", "192.0.2.1 02:00:00:00:00:09 eth0 true"
	conflicting := []AddressStatus{{Address: addr, L2: &l2.Status{Addr: addr, Phase: l2.Conflicting, Conflict: other}}}
	in := func(p l2.Phase) []AddressStatus {
		return []AddressStatus{{Address: addr, L2: &l2.Status{Addr: addr, Phase: p, Conflict: other}}}
	}
	type step struct {
		after     time.Duration
		addresses []AddressStatus
		want      string
	}
	for name, steps := range map[string][]step{
		"not probed": {{0, []AddressStatus{{Address: addr}}, ""}},
		"probing":    {{0, in(l2.Probing), ""}},
		"defended":   {{0, in(l2.Held), ""}},
		"yielded": {{0, []AddressStatus{{Address: addr,
			L2: &l2.Status{Addr: addr, Phase: l2.Conflicting, Conflict: other, WasHeld: true}}}, before}},
		"other host leaves": {{0, conflicting, reported}, {time.Minute, in(l2.Probing), reported},
			{time.Second, in(l2.Held), ""}},
		"lasts": {{0, conflicting, reported}, {time.Hour, conflicting, reported}},
		"probed again": {{0, conflicting, reported}, {9 * time.Minute, in(l2.Probing), reported},
			{9 * time.Minute, in(l2.Waiting), reported}},
		"replaced":       {{0, conflicting, reported}, {9 * time.Minute, nil, reported}, {2 * time.Minute, nil, ""}},
		"another node's": {{0, conflicting, reported}, {time.Minute, []AddressStatus{{Address: addr}}, reported}},
	} {
		t.Run(name, func(t *testing.T) {
			var r conflictReport
			now := time.Unix(1e9, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				r = r.next(s.addresses, now)
				var got []string
				for _, c := range r.list() {
					got = append(got, fmt.Sprintf("%s %s %s %t", c.Address, c.MAC, c.Interface, c.Held))
				}
				if text := strings.Join(got, "; "); text != s.want {
					t.Errorf("step %d: reports %q, want %q", i, text, s.want)
				}
			}
		})
	}
}

// A host that answers for thousands of addresses fills the report once: the first ones stay.
func TestConflictReportIsBounded(t *testing.T) {
	var all []AddressStatus
	addr := netip.MustParseAddr("192.0.2.1")
	for range 1000 {
		all = append(all, AddressStatus{
			Address: addr, L2: &l2.Status{Addr: addr, Phase: l2.Conflicting, Conflict: &l2.Conflict{}},
		})
		addr = addr.Next()
	}
	now := time.Unix(1e9, 0)
	r := conflictReport(nil).next(all[500:], now).next(all, now)
	if got := r.list(); len(got) != v1alpha1.MaxSpeakerConflicts || got[0].Address != all[500].Address.String() {
		t.Errorf("%d conflicts from %s on", len(got), got[0].Address)
	}
}
