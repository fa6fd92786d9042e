package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// shared is the cluster of all tests, with pods of a workload. Each test leaves it as it found it, but
// may remove Fanfare.
var shared = sync.OnceValues(func() (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	tools, err := kube.Tools(ctx, true)
	if err != nil {
		return nil, err
	}
	running, err = upCluster(ctx, options{fmt.Sprintf("k%d", os.Getpid()), nodes, kube.NFTables}, tools)
	if err != nil {
		return nil, err
	}
	return running, running.startWeb(ctx)
})

var running *cluster // the cluster to take down; nil if none was built

func TestMain(m *testing.M) {
	code := m.Run()
	if running != nil {
		if err := running.down(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "cluster down:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// kubelets returns the shared cluster with Fanfare installed.
func kubelets(t *testing.T) *cluster {
	t.Helper()
	c := anyKubelets(t)
	if !c.installed {
		must(t, c.install(t.Context()))
	}
	return c
}

// anyKubelets returns the shared cluster, with Fanfare or without.
func anyKubelets(t *testing.T) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("a cluster with kubelets takes minutes")
	}
	if err := missing(); err != nil {
		nstest.Missing(t, err.Error())
	}
	c, err := shared()
	if running != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(running.diagnostics())
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	// limit bounds waits of some seconds on an idle machine.
	limit = 2 * time.Minute
	// timeout is the same bound for kubectl.
	timeout = "--timeout=120s"
)

// missing returns what kubelets need and this machine lacks.
func missing() error {
	if err := lab.Missing("containerd", "runc", "ctr", "nsenter", "unshare", "/usr/lib/cni/bridge"); err != nil {
		return err
	}
	if _, err := os.Stat(cgroups + "/cgroup.controllers"); err == nil {
		return errors.New("the tests' kubelets need cgroup v1, and this machine has only cgroup v2")
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
