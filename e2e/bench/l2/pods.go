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

// afterwards is for how long requests go on when a node is missed: long enough to see whether
// some still go to its pods.
const afterwards = 2 * time.Second

// A podLoss is what was seen of a node that loses power, that has pods and does not answer for
// the address.
type podLoss struct {
	// Noticed is from the end of the node to when another speaker logs that it is
	// no longer alive; Hurt to the begin of the last request that was lost, or answered
	// late because a packet was. Back is from its return to the first answer of its pod.
	Noticed, Hurt, Back measure.Sample
	// Sent requests there were while it was away; of these Lost got no answer, and Late were
	// answered after a packet was lost.
	Sent, Lost, Late int
}

// losePods has a node lose power that has a third of the pods, again and again, each node in turn.
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

// losePod has a node go once, and come back.
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
	err := lab.Await(ctx, lab.Settle, node+" to be missed", func() error { _, err := l.DetectedDead(node, gone); return err })
	if err != nil {
		return err
	}
	if err := calm(ctx, afterwards); err != nil {
		return err
	}
	report := load.Stop()
	noticed, err := l.DetectedDead(node, gone)
	if err != nil {
		return err
	}
	r.Noticed = append(r.Noticed, noticed.Sub(gone))
	// Where nothing was hurt, the time is none.
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
