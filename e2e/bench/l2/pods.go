package l2

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// afterwards is how long requests continue after the detection, to see whether some still
// go to the dead node's pods.
const afterwards = 2 * time.Second

// A podLoss holds the measurements of power failures of a node that has pods and does not
// announce the address.
type podLoss struct {
	// Noticed is the time from the failure to another speaker's log message that the node is
	// dead; Hurt that to the start of the last request that was lost, or slow because a packet
	// was lost; Back that from the node's return to the first answer of its pod.
	Noticed, Hurt, Back measure.Sample
	// Sent requests during the failure; Lost of these got no answer, Late were answered after
	// a packet was lost.
	Sent, Lost, Late int
}

// losePods fails the power of a node with a third of the pods, each node in turn.
func losePods(ctx context.Context, l *lab.Lab, runs int) (r podLoss, err error) {
	svc := lab.Service{Name: "pods", Endpoints: lab.At("p11", "p21", "p31")}
	for n := range runs {
		entry, node := lab.NodeNames[n%len(lab.NodeNames)], lab.NodeNames[(n+1)%len(lab.NodeNames)]
		svc.Annotations = map[string]string{"fanfare.io/l2-node": entry}
		if err := l.Cluster.Put(svc); err != nil {
			return r, err
		}
		vip, err := l.AwaitAddress(ctx, "shop/"+svc.Name, false)
		if err != nil {
			return r, err
		}
		if _, err := l.AwaitOwner(ctx, vip, entry); err != nil {
			return r, err
		}
		if err := losePod(ctx, l, node, vip, &r); err != nil {
			return r, fmt.Errorf("%s, run %d: %w", node, n+1, err)
		}
	}
	return r, l.Cluster.Delete(svc.Name)
}

// losePod makes a node fail once and return.
func losePod(ctx context.Context, l *lab.Lab, node string, vip netip.Addr, r *podLoss) error {
	pod := lab.PodNames[slices.IndexFunc(lab.PodNames, func(p string) bool { return lab.NodeOf(p) == node })]
	to := netip.AddrPortFrom(vip, 80)
	load := l.Host().StartLoad(ctx, to)
	if err := load.AwaitPod(ctx, pod, time.Now()); err != nil {
		return err
	}
	gone := time.Now()
	if err := l.PowerOff(ctx, node); err != nil {
		return err
	}
	err := lab.Await(ctx, lab.Settle, node+" to be detected dead",
		func() error { _, err := l.DetectedDead(node, gone); return err })
	if err != nil {
		return err
	}
	if err := measure.Pause(ctx, afterwards); err != nil {
		return err
	}
	report := load.Stop()
	noticed, err := l.DetectedDead(node, gone)
	if err != nil {
		return err
	}
	r.Noticed = append(r.Noticed, noticed.Sub(gone))
	// Zero if no request was affected.
	r.Hurt = append(r.Hurt, max(0, report.LastAffected().Sub(gone)))
	r.Sent, r.Lost, r.Late = r.Sent+report.Sent, r.Lost+len(report.Lost), r.Late+report.Slow
	load = l.Host().StartLoad(ctx, to)
	returns := time.Now()
	if err := l.Reboot(ctx, node); err != nil {
		return err
	}
	err = load.AwaitPod(ctx, pod, returns)
	report = load.Stop()
	r.Back = append(r.Back, report.FirstAnswerOf(pod, returns).Sub(returns))
	return err
}
