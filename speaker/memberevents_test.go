package speaker

import (
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// One node reports for all that a node is dead, once, and that it is back.
func TestDeadNodeEvents(t *testing.T) {
	for _, self := range []string{"n1", "n2"} {
		p := newEventTest(t, reported{})
		see := func(states string) {
			p.desired = plan.Decide(plan.Config{Node: self, Members: plantest.Members(states)},
				plantest.Snapshot(t, []byte(plantest.TwoRouters)))
		}
		expectEvents := func(when string, want ...string) {
			t.Helper()
			if self != "n1" { // the first live node reports
				want = nil
			}
			p.expectEvents(when, want...)
		}
		expectEvents("without members")
		see("aaa")
		expectEvents("all nodes are alive")
		see("aad")
		expectEvents("one is dead", "Warning NodeSilent Node/n3 (): node n1 has received no message from node n3 "+
			"since 2026-05-04T03:02:02Z; its endpoints get no new connections")
		see("aal")
		expectEvents("it is back", "Normal NodeHeard Node/n3 (): node n1 receives messages from node n3 again")
	}
}

// The decision about a dead node's endpoints may follow and change later, and is reported.
func TestEndpointsLeftOutEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	see := func(states string, absent ...string) {
		m := plantest.Members(states)
		for i := range m.Nodes {
			m.Nodes[i].Absent = slices.Contains(absent, m.Nodes[i].Node)
		}
		p.desired = plan.Decide(plan.Config{Node: "n1", Members: m}, plantest.Snapshot(t, []byte(plantest.TwoRouters)))
	}
	see("ad")
	p.expectEvents("half are silent", "Warning NodeSilent Node/n2 (): node n1 has received no message from node n2 "+
		"since 2026-05-04T03:02:01Z; its endpoints are used for now, because half of the nodes or more are silent")
	see("ad", "n2")
	p.expectEvents("the API server does not hear it either",
		"Warning EndpointsLeftOut Node/n2 (): node n1 gives no new connections to the endpoints on node n2, which is "+
			"silent: its Lease is not renewed either, while that of this node is")
	see("ad", "n2")
	p.expectEvents("nothing more")
	see("aa")
	p.expectEvents("it is back", "Normal NodeHeard Node/n2 (): node n1 receives messages from node n2 again")
	see("aad")
	p.expectEvents("one of three", "Warning NodeSilent Node/n3 (): node n1 has received no message from node n3 "+
		"since 2026-05-04T03:02:02Z; its endpoints get no new connections")
	see("add")
	p.expectEvents("two of three",
		"Warning NodeSilent Node/n2 (): node n1 has received no message from node n2 since 2026-05-04T03:02:01Z; its "+
			"endpoints are used for now, because half of the nodes or more are silent",
		"Warning EndpointsUsed Node/n3 (): node n1 uses the endpoints on node n3 again although it is silent: half "+
			"of the nodes or more are, so that this node may be cut off")
	see("aad")
	p.expectEvents("one of three again",
		"Warning EndpointsLeftOut Node/n3 (): node n1 gives no new connections to the endpoints on node n3, which is "+
			"silent: more than half of the nodes respond again",
		"Normal NodeHeard Node/n2 (): node n1 receives messages from node n2 again")
	see("dad")
	p.expectEvents("another node reports")
}
