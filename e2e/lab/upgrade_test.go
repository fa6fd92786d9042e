package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/binary"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// previous builds the program of an earlier commit, once.
var previous = sync.OnceValues(func() (string, error) {
	path, err := binaryPath()
	path = filepath.Join(filepath.Dir(path), "fanfare-previous")
	if err == nil {
		err = binary.BuildPrevious(context.Background(), path)
	}
	return path, err
})

// startPrevious starts the earlier program on all nodes for the duration of a test.
func startPrevious(t *testing.T, l *Lab, start func(context.Context, ...string) error, flags ...string) string {
	t.Helper()
	path, err := previous()
	if errors.Is(err, binary.ErrNoCommit) {
		nstest.Missing(t, err.Error())
	}
	await(t, err)
	restart := func(ctx context.Context, binary string, flags ...string) {
		for _, n := range NodeNames {
			s := l.Speaker(n)
			await(t, s.Terminate())
			s.Binary, s.Flags = binary, flags
		}
		await(t, start(ctx, NodeNames...))
	}
	t.Cleanup(func() { restart(context.WithoutCancel(t.Context()), "") })
	restart(t.Context(), path, flags...)
	return path
}

// replaceAll replaces the speakers of all nodes by those of a program, one after the other.
func replaceAll(t *testing.T, l *Lab, program string, start func(context.Context, ...string) error) {
	t.Helper()
	for _, n := range NodeNames {
		s := l.Speaker(n)
		await(t, s.Terminate())
		s.Binary = program
		await(t, start(t.Context(), n))
		for _, n := range NodeNames {
			await(t, l.awaitMembers(t.Context(), n, "alive", NodeNames...))
		}
	}
}

// Speakers of an earlier commit are replaced by this version's, node by node, and back again: no
// request is lost, connections go on, the router sees no change, and both versions take each
// other for alive.
func TestUpgradeAndDowngradeBGP(t *testing.T) {
	l, ctx := labWithoutSpeakers(t), t.Context()
	await(t, built())
	key := filepath.Join(l.Dir(), "members-key")
	await(t, os.WriteFile(key, []byte("the-key-of-the-laboratory\n"), 0o600))
	old := startPrevious(t, l, l.StartSpeakers, "--members-key-file", key)
	vip := serve(t, l, Service{Name: "upgraded", Endpoints: At("p11", "p21", "p31")}, NodeNames...)
	for _, step := range []struct{ name, program string }{{"upgrade", ""}, {"downgrade", old}} {
		began := time.Now()
		flows, err := l.Client.OpenFlows(ctx, 6, port(vip, 7))
		await(t, err)
		defer flows.Close()
		load := l.Client.StartLoad(ctx, port(vip, 80))
		replaceAll(t, l, step.program, l.StartSpeakers)
		await(t, flows.AwaitLines(ctx, 2))
		t.Log(step.name)
		expectNoLoss(t, l, load, began)
		for _, f := range flows.All {
			await(t, f.Err())
		}
		if n := len(l.Observer.RouteChanges(vip, began, time.Now())); n > 0 {
			t.Errorf("%s: the route changed %d times: want it untouched", step.name, n)
		}
	}
}

// The same over Layer 2, where addresses move away from a speaker that stops and back: nodes of both
// versions redirect connections to each other. Connections outlive both directions.
func TestUpgradeAndDowngradeL2(t *testing.T) {
	l := laboratoryL2(t)
	old := startPrevious(t, l, l.StartL2Speakers)
	for _, policy := range policies {
		t.Run(policy.name, func(t *testing.T) {
			vips := serveL2(t, l, pinnedTo(Service{Name: "upgraded", Policy: policy.policy, Families: bothFamilies,
				Endpoints: At("p11", "p21", "p31")}, "n2"))
			awaitOwners(t, l, vips, "n2")
			k := keepConnections(t, l, vips)
			k.open(30)
			for _, step := range []struct{ name, program string }{{"upgrade", ""}, {"downgrade", old}} {
				expectNoLossL2(t, l, vips, func() { replaceAll(t, l, step.program, l.StartL2Speakers) })
				awaitOwners(t, l, vips, "n2")
				k.check(step.name)
			}
		})
	}
}
