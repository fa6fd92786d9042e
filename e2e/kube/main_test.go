package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
)

// The tests of this package share one control plane, started by the first that
// asks for it. Each leaves it without the objects that it made.
var shared = sync.OnceValues(func() (*Cluster, error) {
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
	running, err = Start(ctx, tools, dir, netip.MustParseAddr("127.0.0.1"))
	return running, err
})

var running *Cluster // what there is to stop; nil when nothing was started

type errNoTools struct{ error }

func TestMain(m *testing.M) {
	code := m.Run()
	if running != nil {
		if err := running.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// controlPlane skips, or fails on CI, where the tools cannot be built.
func controlPlane(t *testing.T) *Cluster {
	t.Helper()
	c, err := shared()
	var missing errNoTools
	switch {
	case errors.As(err, &missing) && os.Getenv("CI") != "true":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return c
}

// await waits until probe returns nil.
func await(t *testing.T, limit time.Duration, what string, probe func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := probe()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
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
	await(t, 20*time.Second, "CRDs", func() error {
		for _, gvk := range kinds {
			if _, err := c.Admin().List(t.Context(), gvk); err != nil {
				return err
			}
		}
		return nil
	})
}
