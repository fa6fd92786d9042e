package scale

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const (
	proxyAccount = "system:kube-proxy"

	proxyAudit = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, users: ["` + proxyAccount + `"], verbs: [list, watch]}]
`
	proxyConfiguration = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
clusterCIDR: 10.244.0.0/16
hostnameOverride: %s
conntrack: {maxPerCore: 0}
`
)

// A hollow kube-proxy lists and watches what kube-proxy does, with the same selectors.
func TestHollowProxyReadsAsKubeProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("a control plane takes some seconds") // only in make test-short
	}
	nstest.Run(t, func(t *testing.T) {
		tools, err := kube.Tools(t.Context(), false)
		if err != nil {
			nstest.Missing(t, err.Error())
		}
		dir := t.TempDir()
		policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
		if err := os.WriteFile(policy, []byte(proxyAudit), 0o600); err != nil {
			t.Fatal(err)
		}
		cluster, err := kube.StartIn(t.Context(), nil, tools, filepath.Join(dir, "control-plane"),
			netip.MustParseAddr("127.0.0.1"), kube.AuditLog(policy, log))
		t.Cleanup(func() {
			if err := cluster.Stop(); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		createOneNode(t, cluster)
		startKubeProxy(t, cluster, tools, dir)
		startHollowProxy(t, cluster)
		err = lab.Await(t.Context(), 10*time.Minute, "the same requests of both", func() error {
			real, hollow := proxyReads(t, log)
			if len(real) < 4 || !slices.Equal(real, hollow) {
				return fmt.Errorf("kube-proxy:\n%s\nhollow kube-proxy:\n%s", strings.Join(real, "\n"),
					strings.Join(hollow, "\n"))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func createOneNode(t *testing.T, cluster *kube.Cluster) {
	admin, err := cluster.Config("bench", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{size: size{Nodes: 1}}
	if b.core, b.discovery, err = measure.Clients(admin); err != nil {
		t.Fatal(err)
	}
	if err := b.createNode(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}

func startKubeProxy(t *testing.T, cluster *kube.Cluster, tools, dir string) {
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "kube-proxy.yaml")
	if err := cluster.WriteKubeconfig(kubeconfig, proxyAccount); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, proxyConfiguration, kubeconfig, nodeName(0)), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(tools, "kube-proxy", "--config", config)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("kube-proxy:\n%s", &out)
		}
	})
}

func startHollowProxy(t *testing.T, cluster *kube.Cluster) {
	config, err := cluster.Config(proxyAccount)
	if err != nil {
		t.Fatal(err)
	}
	h := &hollowProxy{node: nodeName(0), config: config, traffic: newTraffic()}
	f := &fleet{make: func(int) client { return h }, all: map[int]*running{}}
	f.start(t.Context(), 0)
	t.Cleanup(func() {
		if err := f.end(0, true); err != nil {
			t.Error(err)
		}
	})
}

// proxyReads returns the lists and watches of kube-proxy and of the hollow one, sorted, from the log.
func proxyReads(t *testing.T, log string) (real, hollow []string) {
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var byProgram [2]map[string]bool
	for i := range byProgram {
		byProgram[i] = map[string]bool{}
	}
	for line := range bytes.Lines(text) {
		var e struct{ UserAgent, RequestURI string }
		if json.Unmarshal(line, &e) != nil {
			continue // the last line is not complete
		}
		u, err := url.Parse(e.RequestURI)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		program := byProgram[1]
		if strings.HasPrefix(e.UserAgent, "kube-proxy/") {
			program = byProgram[0]
		}
		program[fmt.Sprintf("%s labels=%q fields=%q watch=%s initial=%s", u.Path, q.Get("labelSelector"),
			q.Get("fieldSelector"), q.Get("watch"), q.Get("sendInitialEvents"))] = true
	}
	return slices.Sorted(maps.Keys(byProgram[0])), slices.Sorted(maps.Keys(byProgram[1]))
}
