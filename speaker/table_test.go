package speaker

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// A tableTest is a speaker with a real proxy in a namespace, where neither the FORWARD chain
// nor the fast path works.
type tableTest struct {
	*speaker
	spoil  atomic.Bool   // passes request what the proxy refuses
	passes atomic.Uint64 // passes that have begun
	failed atomic.Uint64 // those with refused requests
	lost   atomic.Bool   // a pass began with no announcement after one with some

	announced atomic.Bool // a pass began with an announcement
}

// newTableTest starts its passes.
func newTableTest(t *testing.T) *tableTest {
	t.Helper()
	return newTableTestWith(t, func(*nstest.NS) {})
}

// newTableTestWith starts its passes on a node that was prepared.
func newTableTestWith(t *testing.T, prepare func(node *nstest.NS)) *tableTest {
	t.Helper()
	tools := t.TempDir()
	nft, err := exec.LookPath("nft")
	if err != nil {
		nstest.Missing(t, err.Error())
	}
	if err := os.Symlink(nft, filepath.Join(tools, "nft")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tools, "iptables-nft-save"), []byte("#!/bin/sh\necho no memory >&2\nexit 1\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	os.Setenv("PATH", tools) // the process has only this test

	node, router, pod := nstest.Node(t), nstest.New(t, "router"), nstest.New(t, "pod")
	nstest.Link(t, node, "eth0", router, "eth0")
	nstest.Link(t, node, "cali1", pod, "eth0")
	node.Addr("eth0", "10.0.0.11/24")
	node.Addr("cali1", "10.244.1.254/24")
	node.Route("0.0.0.0/0", "10.0.0.1", "")
	node.Forward()
	prepare(node)

	ctx, cancel := context.WithCancel(t.Context())
	o := Options{
		Config: plan.Config{Node: "n1"}, ProxyMode: proxy.ModeNFTables, FastPath: true,
		FastPathDir: filepath.Join(t.TempDir(), "no-bpf"),
		RunDir:      t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Registry: prometheus.NewRegistry(),
	}
	s, err := start(ctx, o, fixedSource{plantest.Snapshot(t, weightedCluster(2, 0, false))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	u := &tableTest{speaker: s}
	announced := false
	s.reshape = func(d *plan.Desired) *plan.Desired { // in the loop's goroutine, before each pass
		now := s.bgpPath.announcedPrefixes.Len() > 0
		u.lost.Store(u.lost.Load() || announced && !now)
		announced = now
		u.announced.Store(u.announced.Load() || now)
		u.passes.Add(1)
		if !u.spoil.Load() {
			return d
		}
		u.failed.Add(1)
		spoilt := *d
		spoilt.Proxy.Clients.Bridge = strings.Repeat("x", 100) // no single address is the cause
		return &spoilt
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.loop(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		s.proxy.Close()
		s.health.Close()
		s.gateway.stop()
		s.uplinks.stop()
	})
	return u
}

// await waits for a result of passes.
func (u *tableTest) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !is() {
		select {
		case <-deadline:
			t.Fatalf("%s: not within 30 s; the last pass: %v", what, u.result.Load().err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// awaitPasses waits for n new passes.
func (u *tableTest) awaitPasses(t *testing.T, n uint64, of *atomic.Uint64) {
	t.Helper()
	from := of.Load()
	u.await(t, "passes", func() bool { return of.Load() >= from+n })
}

func (u *tableTest) announces() bool { return u.bgp.Status().Routes == 1 }

func nftables(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

// While the table is intact, nothing withdraws what it forwards: neither an obstacle that may let
// traffic pass, nor retried errors of FORWARD and the fast path, nor passes that fail. If the
// table is lost and the repair fails, everything is withdrawn, and announced again with the table.
func TestAnnouncementsFollowTable(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 16 s: it awaits three retries, which come every five seconds")
	}
	nstest.Run(t, func(t *testing.T) {
		u := newTableTest(t)
		u.await(t, "the route", u.announces)
		if st := u.proxy.Status(); !strings.Contains(st.ForwardError, "no memory") || st.FastPath.Error == "" {
			t.Fatalf("FORWARD: %q, fast path: %q; want both to fail", st.ForwardError, st.FastPath.Error)
		}

		// An obstacle comes and goes.
		u.spoil.Store(true)
		u.awaitPasses(t, 1, &u.failed)
		obstructed := func() bool {
			return slices.ContainsFunc(u.proxy.Obstacles(),
				func(o obstacle.Obstacle) bool { return strings.Contains(o.About, "kube-proxy") })
		}
		nftables(t, "table ip kube-proxy { chain nat-prerouting { type nat hook prerouting priority -150; }; }")
		u.await(t, "the obstacle", obstructed)
		u.awaitPasses(t, 2, &u.failed)
		nftables(t, "delete table ip kube-proxy")
		u.await(t, "no obstacle", func() bool { return !obstructed() })

		// With backoff, so many passes take longer than the five seconds after which
		// FORWARD and the fast path are retried.
		u.awaitPasses(t, 6, &u.failed)
		if u.lost.Load() || !u.announces() {
			t.Error("withdrawn while the table was as written")
		}

		// A lost table is repaired.
		u.spoil.Store(false)
		u.await(t, "a pass that succeeds", func() bool { return u.result.Load().err == nil })
		repairs := u.proxy.Status().Repairs
		nftables(t, "flush ruleset")
		u.await(t, "the repair", func() bool { return u.proxy.Status().Repairs > repairs })
		u.awaitPasses(t, 1, &u.passes) // of another report of the same flush, or of the next one
		if u.lost.Load() || !u.announces() {
			t.Error("withdrawn though the table was repaired at once")
		}

		// If the repair fails, nothing is announced.
		u.spoil.Store(true)
		u.awaitPasses(t, 1, &u.failed) // a pass that has begun would repair it
		nftables(t, "flush ruleset")
		u.await(t, "the withdrawal", func() bool { return !u.announces() })
		if got := u.proxy.Intact(); got.Intact || got.Reason != "table missing" {
			t.Errorf("%+v, want a table that is missing", got)
		}
		u.await(t, "why", func() bool {
			err := u.result.Load().err
			return err != nil && strings.Contains(err.Error(),
				"nothing is announced: the rules in the kernel are not as written since ")
		})
		u.spoil.Store(false)
		u.await(t, "the route again", u.announces)
		if got := u.proxy.Intact(); !got.Intact {
			t.Errorf("%+v", got)
		}
	})
}
