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

// A failureKind is a way in which the announcing node fails and returns.
type failureKind struct {
	name          string
	fail, recover func(context.Context, *lab.Lab, string) error
	// silent: the other nodes get no message about it.
	silent bool
}

// In these failures the node keeps running, and its kernel forwards.
const (
	killed = "its speaker, killed"
	frozen = "its speaker, frozen (SIGSTOP)"
)

// failureKinds are in the order of the table.
var failureKinds = []failureKind{
	{
		"power: its cable is cut and its speaker killed",
		func(ctx context.Context, l *lab.Lab, node string) error { return l.PowerOff(ctx, node) },
		func(ctx context.Context, l *lab.Lab, node string) error { return l.Reboot(ctx, node) },
		true,
	},
	{
		killed,
		func(_ context.Context, l *lab.Lab, node string) error { return l.Speaker(node).Kill() },
		restart,
		true,
	},
	{
		frozen,
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

// restart starts a speaker without its record of crashes: each recorded crash doubles its
// hold-down.
func restart(ctx context.Context, l *lab.Lab, node string) error {
	err := os.Remove(filepath.Join(l.Speaker(node).RunDir, "deaths.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.StartL2Speakers(ctx, node)
}

// A result holds the measurements of one failureKind.
type result struct {
	Name   string
	Silent bool
	// Noticed is the time from the failure to another speaker's log message that the node is
	// dead; Moved that to the host's switch to another node; Answered that from then to the
	// first complete answer.
	Noticed, Moved, Answered measure.Sample
	// Back is the time from the node's return to the host's switch back.
	Back measure.Sample
	// Sent requests in all; Lost of these got no answer, Cut of them because they were in
	// flight when the host switched to another node. Late were answered after a packet was
	// lost.
	Sent, Lost, Cut, Late int
	// Losses has the requests of all runs by the time at which they began, from a while before
	// the failure. The node returns within that time.
	Losses lab.Timeline
}

// A Timeline of a failure has so many intervals, of which the first begins so long before
// it.
const (
	before    = 500 * time.Millisecond
	interval  = 50 * time.Millisecond
	intervals = 90
)

func measureAll(ctx context.Context, o options) (r report, err error) {
	r = report{Began: time.Now(), Runs: o.runs, Addresses: o.addresses}
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
	slog.Info("measure", "services", "created")
	if r.Created, err = create(ctx, l, o.runs); err != nil {
		return r, fmt.Errorf("created: %w", err)
	}
	for _, w := range failureKinds {
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

// failures makes nodes fail and return, each node in turn.
func failures(ctx context.Context, l *lab.Lab, w failureKind, runs int) (r result, err error) {
	r = result{Name: w.name, Silent: w.silent}
	svc := lab.Service{Name: "web", Endpoints: lab.At("p21", "p31")}
	for n := range runs {
		// The pods are on nodes that stay, so that only the address is measured.
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

// others returns the pods that are not on a node.
func others(node string) (pods []string) {
	for _, p := range lab.PodNames {
		if lab.NodeOf(p) != node {
			pods = append(pods, p)
		}
	}
	return pods
}

// failure makes a node fail once and return.
func failure(ctx context.Context, l *lab.Lab, w failureKind, node string, vip netip.Addr, r *result) error {
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
	if err := w.fail(ctx, l, node); err != nil {
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
	if err := w.recover(ctx, l, node); err != nil {
		return err
	}
	recover, err := moves.Await(ctx, vip, returns)
	if err != nil {
		return err
	}
	if err := load.AwaitAnswered(ctx, recover); err != nil {
		return err
	}
	report := load.Stop()
	changes, err := moves.Of(vip)
	if err != nil {
		return err
	}
	cut := report.Interrupted(changes)
	r.Losses = r.Losses.Add(report.Timeline(gone.Add(-before), interval, intervals))
	r.Sent, r.Lost, r.Cut, r.Late = r.Sent+report.Sent, r.Lost+len(report.Lost), r.Cut+cut, r.Late+report.Slow
	r.Moved, r.Back = append(r.Moved, moved.Sub(gone)), append(r.Back, recover.Sub(returns))
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
