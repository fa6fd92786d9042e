package lab

import (
	"errors"
	"testing"
	"time"
)

// An endpoint moves over all nodes gracefully, faster than the linger time: each node has
// to announce again an address that is still lingering.
func TestScenarioMovesFasterThanLinger(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	svc := Service{Name: "nomad", Policy: localTraffic, Endpoints: At("p11")}
	vip := serve(t, l, svc, "n1")
	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))
	put := func(e ...Endpoint) {
		svc.Endpoints = e
		await(t, l.Cluster.Put(svc))
	}
	for _, move := range [][2]string{{"p11", "p21"}, {"p21", "p31"}, {"p31", "p11"}, {"p11", "p31"}, {"p31", "p11"}} {
		from, to := move[0], move[1]
		put(Endpoint{Pod: from}, Endpoint{Pod: to})
		await(t, pause(ctx, 300*time.Millisecond))
		put(Endpoint{from, Terminating}, Endpoint{Pod: to})
		await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeOf(to)))
		await(t, pause(ctx, 400*time.Millisecond))
		err := l.Pod(from).Stop(ctx)
		put(Endpoint{Pod: to})
		await(t, errors.Join(err, pause(ctx, 200*time.Millisecond), l.StartPod(ctx, from)))
	}
	expectNoLoss(t, l, load, began)
}

// A new pool that overlaps an existing one and precedes it by name takes no address from a
// Service.
func TestScenarioOverlapKeepsAddresses(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "settled", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))
	t.Cleanup(func() { await(t, l.Cluster.Delete("attic")) })
	await(t, l.Cluster.PutText("attic", "apiVersion: fanfare.io/v1alpha1\nkind: AddressPool\nmetadata: {name: "+
		"attic}\nspec:\n  announce: BGP\n  addresses: [192.0.2.0/24]\n"))
	s := &StepRun{Lab: l}
	lines, err := s.AwaitStatusLines(ctx, [][]string{{"AddressPool", "attic", "lan", "192.0.2.0"}})
	await(t, err)
	t.Log(lines)
	await(t, pause(ctx, 500*time.Millisecond))
	if n := len(l.Observer.RouteChanges(vip, began, time.Now())); n > 0 {
		t.Errorf("the route changed %d times: want it untouched", n)
	}
	expectNoLoss(t, l, load, began)
}
