package speaker

import (
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/plantest"
)

// Of all who miss a node one tells people, once, and that it is back.
func TestMembersAreTold(t *testing.T) {
	for _, self := range []string{"n1", "n2"} {
		p := newPlay(t, told{})
		see := func(states string) {
			p.desired = plan.Decide(plan.Config{Node: self, Members: plantest.Members(states)}, plantest.Snapshot(t, []byte(plantest.TwoRouters)))
		}
		tells := func(when string, want ...string) {
			t.Helper()
			if self != "n1" { // the first one alive tells
				want = nil
			}
			p.tells(when, want...)
		}
		tells("without members")
		see("aaa")
		tells("all are there")
		see("aad")
		tells("one is silent", "Warning NodeSilent Node/n3 (): node n1 has not heard of node n3 since 2026-05-04T03:02:02Z; what is there is left out")
		see("aal")
		tells("it is back", "Normal NodeHeard Node/n3 (): node n1 no longer misses node n3")
	}
}

// What becomes of the endpoints of a node that is silent may be decided, and change, later:
// that is told, too.
func TestWhatIsLeftOutIsTold(t *testing.T) {
	p := newPlay(t, told{})
	see := func(states string, absent ...string) {
		m := plantest.Members(states)
		for i := range m.Nodes {
			m.Nodes[i].Absent = slices.Contains(absent, m.Nodes[i].Node)
		}
		p.desired = plan.Decide(plan.Config{Node: "n1", Members: m}, plantest.Snapshot(t, []byte(plantest.TwoRouters)))
	}
	see("ad")
	p.tells("half are silent", "Warning NodeSilent Node/n2 (): node n1 has not heard of node n2 since 2026-05-04T03:02:01Z; what is there is used for now, since half of the nodes or more are not heard of")
	see("ad", "n2")
	p.tells("the API server does not hear it either", "Warning EndpointsLeftOut Node/n2 (): node n1 leaves out what is on node n2, which is not heard of: its Lease is not renewed either, while that of this node is")
	see("ad", "n2")
	p.tells("nothing more")
	see("aa")
	p.tells("it is back", "Normal NodeHeard Node/n2 (): node n1 no longer misses node n2")
	see("aad")
	p.tells("one of three", "Warning NodeSilent Node/n3 (): node n1 has not heard of node n3 since 2026-05-04T03:02:02Z; what is there is left out")
	see("add")
	p.tells("two of three",
		"Warning NodeSilent Node/n2 (): node n1 has not heard of node n2 since 2026-05-04T03:02:01Z; what is there is used for now, since half of the nodes or more are not heard of",
		"Warning EndpointsUsed Node/n3 (): node n1 uses what is on node n3 again, though it is not heard of: half of the nodes or more are not, so this one may be cut off")
	see("aad")
	p.tells("one of three again",
		"Warning EndpointsLeftOut Node/n3 (): node n1 leaves out what is on node n3, which is not heard of: more than half of the nodes respond again",
		"Normal NodeHeard Node/n2 (): node n1 no longer misses node n2")
	see("dad")
	p.tells("another one tells")
}
