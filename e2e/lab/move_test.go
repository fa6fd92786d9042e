package lab

import (
	"errors"
	"testing"
	"time"
)

// An endpoint that goes round all nodes, in order, faster than an address
// lingers: each node has to take an address back that it is about to forget.
func TestStoryManyMoves(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	svc := Service{Name: "nomad", Policy: localTraffic, Endpoints: At("p11")}
	vip := served(t, l, svc, "n1")
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
		await(t, pause(ctx, 700*time.Millisecond))
		err := l.Pod(from).Stop(ctx)
		put(Endpoint{Pod: to})
		await(t, errors.Join(err, pause(ctx, 200*time.Millisecond), l.StartPod(ctx, from)))
	}
	unharmed(t, l, load, began)
}
