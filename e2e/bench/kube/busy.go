package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A busy value holds the measurements of creating a Service while all nodes have work: a
// speaker and kube-proxy, with its default minSyncPeriod, run on each node, and endpoints of
// background Services change. Its times end at the first of the nodes' announcements, and at
// the route to any node; its rules are those of Fanfare's node, and of kube-proxy's.
type busy struct {
	Created created
	CPU     []measure.Share // of all processes meanwhile
}

// createBusy measures with speakers and kube-proxies on all nodes. kube-proxy does not run
// afterwards.
func (b *bench) createBusy(ctx context.Context, repeats int) (r busy, err error) {
	defer func(was []measured) {
		b.pids = was
		err = errors.Join(err, b.endBusy(context.WithoutCancel(ctx)))
	}(b.pids)
	if err := b.startAll(ctx); err != nil {
		return r, err
	}
	r.CPU, err = b.withChurn(ctx, func(ctx context.Context) error {
		for range repeats {
			if err := errors.Join(anyMoment(ctx), b.createOne(ctx, &r.Created)); err != nil {
				return err
			}
		}
		return nil
	})
	return r, err
}

// startAll starts what is missing on the nodes, and waits until all kernels and the router
// have all background Services.
func (b *bench) startAll(ctx context.Context) error {
	if err := b.proxy.Stop(syscall.SIGKILL, 10*time.Second); err != nil {
		return err
	}
	if err := b.StartProxies(ctx, kube.NFTables); err != nil {
		return err
	}
	b.proxy = b.Proxies[proxyNode]
	if err := b.StartSpeakers(ctx, lab.NodeNames...); err != nil {
		return err
	}
	b.pids = slices.Concat(b.pids, b.others())
	if err := b.awaitRoutes(ctx, b.background, len(lab.NodeNames)); err != nil {
		return err
	}
	return b.awaitQuiet(ctx, lab.NodeNames...)
}

// others lists the processes that run for createBusy only.
func (b *bench) others() (all []measured) {
	for _, node := range lab.NodeNames {
		if node != fanfareNode {
			all = append(all, measured{speakerName + " on " + node, b.Speaker(node).PID})
		}
		if node != proxyNode {
			all = append(all, measured{proxyName + " on " + node, b.Proxies[node].PID})
		}
	}
	return all
}

// endBusy removes the speakers and kube-proxies that startAll has started, with their rules.
// The router would keep the routes of the former speakers for their restart time; it starts
// again instead.
func (b *bench) endBusy(ctx context.Context) error {
	err := b.StopProxies(ctx)
	for _, node := range lab.NodeNames {
		if node != fanfareNode {
			err = errors.Join(err, b.removeSpeaker(ctx, node))
		}
	}
	return errors.Join(err, b.replaceRouter(ctx, lab.FRR))
}

func (b *bench) removeSpeaker(ctx context.Context, node string) error {
	s := b.Speaker(node)
	if err := s.Terminate(); err != nil {
		return err
	}
	_, err := b.Namespace(node).Run(ctx, b.Binary, "cleanup", "--run-dir", s.RunDir)
	return err
}

// anyMoment waits for a random time. Events must not be in step with the kube-proxies, which
// are never quiet while endpoints change.
func anyMoment(ctx context.Context) error {
	return measure.Pause(ctx, time.Duration(rand.Int64N(int64(time.Second))))
}
