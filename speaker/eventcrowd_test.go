package speaker

import (
	"fmt"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// When one router fails for many nodes, few Events are stored about it; each of a few nodes has its own.
func TestEventsOfManyNodes(t *testing.T) {
	for nodes, want := range map[int]int{10: 10, crowd: crowd, 1000: causeWriters} {
		world := newEventTest(t, reported{})
		world.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"))
		bubble.Test(t, func(t *testing.T) {
			members := &membership.Members{}
			for i := range nodes {
				members.Nodes = append(members.Nodes, membership.Member{Node: fmt.Sprintf("node%d", i), Alive: true})
			}
			names, notes := map[string]bool{}, map[string]bool{}
			for _, m := range members.Nodes {
				for _, e := range world.routerFails(t, m.Node, members) {
					names[e.event.Namespace+"/"+e.event.Name], notes[e.event.Note] = true, true
				}
			}
			if len(names) != want {
				t.Errorf("%d nodes: %d Events, want %d", nodes, len(names), want)
			}
			if len(notes) != nodes {
				t.Errorf("%d nodes: %d different notes", nodes, len(notes))
			}
		})
	}
}

// routerFails returns the Events of a node whose first session ends.
func (p *eventTest) routerFails(t *testing.T, node string, members *membership.Members) []pendingEvent {
	t.Helper()
	r := reporterTo(t, nil).eventRecorder(reported{})
	r.source.Instance = node
	now := p.observation
	desired, view := *now.desired, *now.desired.Inputs
	view.Node, view.Members = node, members
	desired.Inputs = &view
	now.desired, now.at = &desired, time.Now()
	now.sessions = []bgp.SessionStatus{{Name: "tor1", State: bgp.Established, Since: now.at}}
	r.queue(now)
	r.pending = nil
	now.sessions = []bgp.SessionStatus{{Name: "tor1", State: bgp.Idle, Since: now.at, LastError: "hold timer expired"}}
	r.queue(now)
	return r.pending
}
