package membership

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// The state of a member by gossip and by renewals, in seconds: the death is at 100.
func TestMembersOf(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for _, tt := range []struct {
		state   gossip.State
		renewal int // 0: none
		now     int
		want    string
	}{
		{gossip.Alive, 0, 200, "alive"},
		{gossip.Alive, 1, 200, "alive"},
		{gossip.Left, 199, 200, "left"}, // by its own report
		{gossip.Dead, 0, 100, "dead"},
		{gossip.Dead, 99, 100, "dead"},  // from before
		{gossip.Dead, 100, 101, "dead"}, // at the same time: not after
		{gossip.Dead, 101, 101, "lease"},
		{gossip.Dead, 101, 115, "lease"},
		{gossip.Dead, 101, 116, "dead"}, // three intervals later
		{gossip.Dead, 115, 116, "lease"},
	} {
		v := &gossip.View{Members: []gossip.Member{{Node: "n2", State: tt.state, Since: at(100)}}}
		for _, absent := range []bool{false, true} {
			leases := map[string]leaseState{}
			if tt.renewal > 0 || absent {
				leases["n2"] = leaseState{absent: absent}
			}
			if tt.renewal > 0 {
				leases["n2"] = leaseState{renewed: at(tt.renewal), absent: absent}
			}
			m, _ := membersOf(v, leases, 15*time.Second, at(tt.now)).Find("n2")
			if got := m.State(); got != tt.want || !m.Since.Equal(at(100)) ||
				m.Absent != (absent && tt.want == "dead") {
				t.Errorf("%+v, absent %v: %s, %+v", tt, absent, got, m)
			}
		}
	}
	if got := membersOf(&gossip.View{}, nil, time.Second, at(0)); got != nil {
		t.Errorf("without members: %+v", got)
	}
}

// A node that is alive by its Lease has the interfaces of the Lease, if it has any metadata.
// Nodes that gossip never reached are alive by their Leases, too.
func TestMembersByLease(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	one, _ := EncodeInterfaces([]cluster.Interface{{Name: "eth0"}})
	none, _ := EncodeInterfaces(nil)
	v := &gossip.View{Members: []gossip.Member{{Node: "n1"},
		{Node: "n3", State: gossip.Dead, Since: at(100), Meta: one}}}
	for name, tt := range map[string]struct {
		seen map[string]leaseState
		want string
	}{
		"no Lease":                  {nil, "n1 alive 0, n3 dead 1"},
		"a Lease of an old release": {map[string]leaseState{"n3": {renewed: at(110)}}, "n1 alive 0, n3 lease 1"},
		"it has lost them": {map[string]leaseState{"n3": {renewed: at(110), record: leaseRecord{meta: none}}},
			"n1 alive 0, n3 lease 0"},
		"lost, and it is dead": {map[string]leaseState{"n3": {renewed: at(90), record: leaseRecord{meta: none}}},
			"n1 alive 0, n3 dead 1"},
		"never a member": {map[string]leaseState{"n2": {renewed: at(110), since: at(50),
			record: leaseRecord{meta: one}}}, "n1 alive 0, n2 lease 1, n3 dead 1"},
		"never a member, expired": {map[string]leaseState{"n2": {renewed: at(90), record: leaseRecord{meta: one}}},
			"n1 alive 0, n3 dead 1"},
		"not seen to be renewed": {map[string]leaseState{"n2": {since: at(50), record: leaseRecord{meta: one}}},
			"n1 alive 0, n3 dead 1"},
	} {
		var got []string
		for _, m := range membersOf(v, tt.seen, 15*time.Second, at(111)).Nodes {
			got = append(got, fmt.Sprintf("%s %s %d", m.Node, m.State(), len(m.Interfaces)))
		}
		if s := strings.Join(got, ", "); s != tt.want {
			t.Errorf("%s: %s, want %s", name, s, tt.want)
		}
	}
}

// With Layer 2, nodes that were never members count as unreachable, unless they are excluded
// from answering for addresses.
func TestUnreachableNodes(t *testing.T) {
	v := &gossip.View{Members: []gossip.Member{{Node: "n1"}, {Node: "n2", State: gossip.Left},
		{Node: "n3", State: gossip.Dead}, {Node: "n4"}}}
	snap := &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "n0"}, {Name: "n1"}, {Name: "n2"}, {Name: "n3"},
		{Name: "n4"}, {Name: "n5", Excluded: true}}}
	if got := fmt.Sprint(unreachableNodes(v, snap, "n1")); got != "[n3]" {
		t.Errorf("without L2: %s", got)
	}
	snap.L2Advertisements = []*cluster.L2Advertisement{{Name: "any"}}
	if got := fmt.Sprint(unreachableNodes(v, snap, "n1")); got != "[n3 n0]" {
		t.Errorf("with L2: %s", got)
	}
	if got := unreachableNodes(&gossip.View{}, snap, "n1"); got != nil {
		t.Errorf("while this node does not listen: %v", got)
	}
}
