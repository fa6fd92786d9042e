package l2

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A way is one in which the node goes that answers for the address.
type way struct {
	name        string
	leave, back func(context.Context, *lab.Lab, string) error
	// silent: the others have to notice it by themselves.
	silent bool
}

// ways are in the order of the table.
var ways = []way{
	{
		"power: its cable is cut and its speaker killed",
		func(ctx context.Context, l *lab.Lab, node string) error { return l.PowerOff(ctx, node) },
		func(ctx context.Context, l *lab.Lab, node string) error { return l.Reboot(ctx, node) },
		true,
	},
	{
		"its speaker, killed",
		func(_ context.Context, l *lab.Lab, node string) error { return l.Speaker(node).Kill() },
		restart,
		true,
	},
	{
		"its speaker, frozen (SIGSTOP)",
		func(_ context.Context, l *lab.Lab, node string) error { return l.Speaker(node).Freeze() },
		func(_ context.Context, l *lab.Lab, node string) error { return l.Speaker(node).Resume() },
		true,
	},
	{
		"its speaker, stopped (SIGTERM)",
		func(_ context.Context, l *lab.Lab, node string) error { return l.Speaker(node).Terminate() },
		restart,
		false,
	},
}

// restart starts a speaker that remembers no crash, or the first one: with each that it
// remembers it would wait twice as long.
func restart(ctx context.Context, l *lab.Lab, node string) error {
	err := os.Remove(filepath.Join(l.Speaker(node).RunDir, "deaths.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.StartL2Speakers(ctx, node)
}

// A result is what was seen of one way.
type result struct {
	Name   string
	Silent bool
	// Noticed is from the end of the node to when another speaker logs that it is
	// no longer alive; Moved to when the host sends to another node; Answered from
	// then to the first whole answer.
	Noticed, Moved, Answered measure.Sample
	// Back is from its return to when the host sends to it again.
	Back measure.Sample
	// Sent requests there were in all; of these Lost got no answer, Cut of them because
	// they were under way when the host began to send to another node. Late were
	// answered after a packet was lost.
	Sent, Lost, Cut, Late int
}

func measureAll(ctx context.Context, o options) (r report, err error) {
	r = report{Began: time.Now(), options: o}
	if r.Machine, err = measure.Describe(ctx, o.Binary); err != nil {
		return r, err
	}
	containerlab := filepath.Join(o.Source, "e2e/containerlab")
	options := lab.Options{ID: "benchl2", Topology: filepath.Join(containerlab, "fanfare.clab.yml"), Binary: o.Binary}
	l, err := lab.Up(ctx, options.ForL2(containerlab))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	if err := l.StartL2Speakers(ctx, lab.NodeNames...); err != nil {
		return r, err
	}
	for _, w := range ways {
		slog.Info("measure", "way", w.name)
		one, err := failures(ctx, l, w, o.runs)
		if err != nil {
			return r, fmt.Errorf("%s: %w", w.name, err)
		}
		r.Results = append(r.Results, one)
	}
	slog.Info("measure", "pods", lab.PodNames)
	if r.Pods, err = losePods(ctx, l, o.runs); err != nil {
		return r, fmt.Errorf("pods: %w", err)
	}
	slog.Info("measure", "addresses", o.addresses)
	if r.Rest, err = atRest(ctx, l, o); err != nil {
		return r, fmt.Errorf("at rest: %w", err)
	}
	r.Took = time.Since(r.Began)
	return r, nil
}

// failures has the node go and come back, again and again.
func failures(ctx context.Context, l *lab.Lab, w way, runs int) (r result, err error) {
	r = result{Name: w.name, Silent: w.silent}
	svc := lab.Service{Name: "web", Endpoints: lab.At("p21", "p31")}
	for n := range runs {
		// Each node in turn has to go; the pods are on nodes that stay, so that what is
		// measured is the address.
		node := lab.NodeNames[n%len(lab.NodeNames)]
		svc.Annotations = map[string]string{"fanfare.io/l2-node": node}
		svc.Endpoints = lab.At(others(node)...)
		if err := l.Cluster.Put(svc); err != nil {
			return r, err
		}
		vip, err := l.AwaitAddress(ctx, "shop/"+svc.Name, false)
		if err != nil {
			return r, err
		}
		if err := failure(ctx, l, w, node, vip, &r); err != nil {
			return r, fmt.Errorf("%s, run %d: %w", node, n+1, err)
		}
	}
	return r, l.Cluster.Delete(svc.Name)
}

// others are pods that are not on a node.
func others(node string) (pods []string) {
	for _, p := range lab.PodNames {
		if lab.NodeOf(p) != node {
			pods = append(pods, p)
		}
	}
	return pods
}

// failure has a node go once, and come back.
func failure(ctx context.Context, l *lab.Lab, w way, node string, vip netip.Addr, r *result) error {
	if _, err := l.AwaitOwner(ctx, vip, node); err != nil {
		return err
	}
	moves, err := l.WatchNeighbours()
	if err != nil {
		return err
	}
	defer moves.Close()
	load := l.Host().StartLoad(ctx, netip.AddrPortFrom(vip, 80))
	if err := load.AwaitAnswered(ctx, time.Now()); err != nil {
		return err
	}
	gone := time.Now()
	if err := w.leave(ctx, l, node); err != nil {
		return err
	}
	moved, err := moves.Await(ctx, vip, gone)
	if err != nil {
		return err
	}
	if err := load.AwaitAnswered(ctx, moved); err != nil {
		return err
	}
	returns := time.Now()
	if err := w.back(ctx, l, node); err != nil {
		return err
	}
	back, err := moves.Await(ctx, vip, returns)
	if err != nil {
		return err
	}
	if err := load.AwaitAnswered(ctx, back); err != nil {
		return err
	}
	report := load.Stop()
	changes, err := moves.Of(vip)
	if err != nil {
		return err
	}
	cut := report.Interrupted(changes)
	r.Sent, r.Lost, r.Cut, r.Late = r.Sent+report.Sent, r.Lost+len(report.Lost), r.Cut+cut, r.Late+report.Slow
	r.Moved, r.Back = append(r.Moved, moved.Sub(gone)), append(r.Back, back.Sub(returns))
	r.Answered = append(r.Answered, report.FirstAnswerAfter(moved).Sub(moved))
	if w.silent {
		at, err := l.DetectedDead(node, gone)
		if err != nil {
			return err
		}
		r.Noticed = append(r.Noticed, at.Sub(gone))
	}
	return nil
}
