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

var oldest = flag.Bool("oldest", false, "run the oldest Kubernetes that works with Fanfare")

// shared is the control plane of the tests that are not isolated. Each test removes its
// objects.
var shared = sync.OnceValues(func() (*Cluster, error) { return start() })

// start starts the only control plane of this process.
func start(options ...Option) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	find := Tools
	if *oldest {
		find = Oldest
	}
	tools, err := find(ctx, !testing.Short())
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

var running *Cluster // the control plane to stop; nil if none was started

type errNoTools struct{ error }

// parallelTests is the number of concurrent isolated tests without -parallel. A single one
// keeps two cores busy for a third of the time.
const parallelTests = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	if !*oldest {
		kinds = append(kinds, serviceCIDRKind)
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", parallelTests) // It is a valid number.
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

// These pass the paths of binaries to the processes of isolated tests. These processes cannot build them:
// without a network, Go gets no module that the machine does not have.
const (
	binaryVar   = "FANFARE_E2E_BINARY"
	previousVar = "FANFARE_E2E_PREVIOUS"
)

var (
	build         = buildOnce(binaryVar, binary.Build)
	buildPrevious = buildOnce(previousVar, binary.BuildPrevious)
)

var binaryDir string // where this process has built binaries; empty if it has not

var makeBinaryDir = sync.OnceValue(func() (err error) {
	binaryDir, err = os.MkdirTemp("", "fanfare-kube-program-")
	return err
})

// buildOnce returns a function that builds a binary, if a variable does not have its path yet, and
// sets the variable.
func buildOnce(variable string, build func(ctx context.Context, path string) error) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		if path := os.Getenv(variable); path != "" {
			return path, nil
		}
		if err := makeBinaryDir(); err != nil {
			return "", err
		}
		path := filepath.Join(binaryDir, variable)
		if err := build(context.Background(), path); err != nil {
			return "", err
		}
		return path, os.Setenv(variable, path)
	})
}

// built returns the path of the binary. The first test that needs it builds it.
func built(t *testing.T) string {
	t.Helper()
	path, err := build()
	must(t, err)
	return path
}

// controlPlane returns the shared control plane.
func controlPlane(t *testing.T) *Cluster {
	t.Helper()
	c, err := shared()
	checkStarted(t, err)
	return c
}

// exclusiveControlPlane returns the shared control plane for long tests, one at a time and
// in parallel with isolated tests.
func exclusiveControlPlane(t *testing.T) *Cluster {
	t.Helper()
	t.Parallel()
	turn.Lock()
	t.Cleanup(turn.Unlock)
	return controlPlane(t)
}

var turn sync.Mutex

// checkStarted skips the test, or fails it on CI, if the tools cannot be built.
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

// await waits until probe returns nil. It logs a long wait and probes less often then,
// because many probes start programs.
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

// crds applies the CRDs and waits until the API server serves them.
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
