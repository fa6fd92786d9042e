package speaker

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// A node that is about to leave marks its routes before it withdraws them, and continues to
// forward. A node with a problem withdraws at once. A cordon changes nothing.
func TestLeavingNodeWithdraws(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(n *cluster.Node)
		marks  bool // the routes are marked
		stays  bool
	}{
		{"a taint", func(n *cluster.Node) { n.Leaving = "fanfare.io/leaving" }, true, false},
		{"the label", func(n *cluster.Node) { n.Excluded = true }, true, false},
		{"not ready", func(n *cluster.Node) { n.NotReady = true }, false, false},
		{"no network", func(n *cluster.Node) { n.NetworkUnavailable = true }, false, false},
		{"another label", func(n *cluster.Node) { n.Labels = map[string]string{"cordoned": "yes"} }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { expectWithdrawal(t, c.change, c.marks, c.stays) })
		})
	}
}

func expectWithdrawal(t *testing.T, change func(n *cluster.Node), marks, stays bool) {
	trial := newTrial(1)
	trial.Services, trial.Assignments, trial.Advertisements = nil, nil, nil
	trial.ToggleService(0)
	spec := *trial.Services[0].Spec
	spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	vip := netip.MustParseAddr("192.0.2.1")
	trial.Assignments = []cluster.Assignment{{Addr: vip, Service: spec.Name, Pool: "lan"}}
	trial.Services[0] = cluster.Service{Spec: &spec, Endpoints: plantest.Endpoints("http", 8080,
		cluster.Endpoint{Node: "n2", Addr: netip.MustParseAddr("10.244.0.1"), Ready: true, Serving: true})}
	var nodes []*cluster.Node
	for _, n := range trial.Nodes {
		whole := *n
		whole.Excluded = false
		nodes = append(nodes, &whole)
	}
	trial.Nodes = nodes
	trial.Peers = plantest.NewWorld(1).Peers
	if len(trial.Peers) == 0 {
		t.Fatal("the world has no peer")
	}
	expect := func(when string, announced, shutdown, forwarded bool) {
		t.Helper()
		d := trial.decider.Decide(trial.Snapshot())
		trial.desired = d
		if err := trial.pass.run(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if got := trial.network[host(vip)]; got != announced || d.BGP.Shutdown != shutdown ||
			(trial.kernel[vip] != nil) != forwarded {
			t.Errorf("%s: announced %v, shutdown %v, forwarded %v", when, got, d.BGP.Shutdown, trial.kernel[vip] != nil)
		}
	}
	expect("before", true, false, true)
	there := trial.Nodes[0]
	gone := *there
	change(&gone)
	trial.Nodes[0] = &gone
	expect("at once", marks || stays, marks, true)
	time.Sleep(withdrawDelay)
	expect("after the handover", stays, marks, true)
	time.Sleep(testLinger)
	expect("after the linger time", stays, marks, true) // its pods and its clients still use it
	trial.Nodes[0] = there
	expect("back", true, false, true)
}
