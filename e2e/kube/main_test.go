package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/binary"
)

// The tests of this package that are not apart share one control plane, started by
// the first that asks for it. Each leaves it without the objects that it made.
var shared = sync.OnceValues(func() (*Cluster, error) { return start() })

// start starts the only control plane of this process.
func start(options ...Option) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	tools, err := Tools(ctx, !testing.Short())
	if err != nil {
		return nil, errNoTools{err}
	}
	dir, err := os.MkdirTemp("", "fanfare-kube-")
	if err != nil {
		return nil, err
	}
	running, err = StartIn(ctx, nil, tools, dir, netip.MustParseAddr("127.0.0.1"), options...)
	return running, err
}

var running *Cluster // what there is to stop; nil when nothing was started

type errNoTools struct{ error }

// atOnce is how many tests apart run at a time, unless -parallel says it. They keep
// two cores busy for a third of the time when each runs alone.
const parallelTests = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", parallelTests) // It is a number.
	}
	code := m.Run()
	err := os.RemoveAll(binaryDir)
	if running != nil {
		err = errors.Join(err, running.Stop())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// binaryVar tells the processes of tests apart where the program is.
const binaryVar = "FANFARE_E2E_BINARY"

var binaryDir string // where this process built it; empty if it did not

var build = sync.OnceValues(func() (path string, err error) {
	if path := os.Getenv(binaryVar); path != "" {
		return path, nil
	}
	if binaryDir, err = os.MkdirTemp("", "fanfare-kube-program-"); err != nil {
		return "", err
	}
	path = filepath.Join(binaryDir, "fanfare")
	if err := binary.Build(context.Background(), path); err != nil {
		return "", err
	}
	return path, os.Setenv(binaryVar, path)
})

// built is the path of the program, which the first test that asks for it builds.
func built(t *testing.T) string {
	t.Helper()
	path, err := build()
	must(t, err)
	return path
}

// controlPlane is the shared one.
func controlPlane(t *testing.T) *Cluster {
	t.Helper()
	c, err := shared()
	checkStarted(t, err)
	return c
}

// inTurn is controlPlane for tests that are long: they run beside the tests that are apart,
// one of them at a time.
func exclusiveControlPlane(t *testing.T) *Cluster {
	t.Helper()
	t.Parallel()
	turn.Lock()
	t.Cleanup(turn.Unlock)
	return controlPlane(t)
}

var turn sync.Mutex

// started skips, or fails on CI, where the tools cannot be built.
func checkStarted(t *testing.T, err error) {
	t.Helper()
	var missing errNoTools
	switch {
	case errors.As(err, &missing) && os.Getenv("CI") != "true":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// await waits until probe returns nil. A long wait is logged, and probed less often:
// many a probe starts programs, which take CPU from the programs that the test waits for.
func await(t *testing.T, limit time.Duration, what string, probe func() error) {
	t.Helper()
	began := time.Now()
	deadline := began.Add(limit)
	for {
		err := probe()
		if took := time.Since(began); err == nil {
			if took > time.Second {
				t.Logf("%s: after %.1f s", what, took.Seconds())
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(min(max(time.Since(began)/10, 10*time.Millisecond), 500*time.Millisecond))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// crds applies our CRDs, and waits until objects of them can be written.
func (c *Cluster) crds(t *testing.T) {
	t.Helper()
	must(t, c.Admin().ApplyFiles(t.Context(), "../../manifests/crds"))
	await(t, time.Minute, "CRDs", func() error {
		for _, gvk := range kinds {
			if _, err := c.Admin().List(t.Context(), gvk); err != nil {
				return err
			}
		}
		return nil
	})
}
