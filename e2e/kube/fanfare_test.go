package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A fanfare is the program with a control plane in its own network namespace. Its speaker
// programs that namespace's kernel tables.
type fanfare struct {
	*testing.T
	*Cluster
	binary, dir string
	programs    int // started so far
}

// isolated runs a test in its own process and network namespace, for newFanfare. Such tests
// share nothing and mostly wait, so several run at a time. What takes the machine's network is prepared
// before.
func isolated(t *testing.T, f func(t *testing.T), prepare ...func(t *testing.T)) {
	t.Helper()
	if testing.Short() {
		t.Skip("a control plane for each test takes up to minutes")
	}
	t.Parallel()
	built(t)
	for _, p := range prepare {
		p(t)
	}
	nstest.Run(t, f)
}

// newFanfare starts a control plane, applies manifests/, and writes kubeconfigs for the two
// accounts of rbac.yaml, so that missing rights fail the test.
func newFanfare(t *testing.T, options ...Option) *fanfare {
	t.Helper()
	c, err := start(options...)
	checkStarted(t, err)
	f := &fanfare{T: t, Cluster: c, binary: built(t), dir: t.TempDir()}
	f.crds(t)
	must(t, f.Admin().ApplyFiles(t.Context(), "../../manifests/namespace.yaml", "../../manifests/rbac.yaml",
		"../../manifests/admission.yaml"))
	must(t, f.WriteKubeconfig(f.kubeconfig("controller"), "system:serviceaccount:fanfare-system:controller"))
	must(t, f.WriteSpeakerKubeconfig(f.kubeconfig("speaker"), "n1"))
	return f
}

func (f *fanfare) kubeconfig(account string) string {
	return filepath.Join(f.dir, account+".kubeconfig")
}

func (f *fanfare) runDir() string { return filepath.Join(f.dir, "run") }

func (f *fanfare) speaker(args ...string) *program {
	return f.run("speaker", append([]string{"--node-name", "n1", "--run-dir", f.runDir()}, args...)...)
}

// speakerStatus is the part of `fanfare status --json` that the tests read.
type speakerStatus struct {
	Addresses []struct {
		Address    string   `json:"address"`
		Services   []string `json:"services"`
		Programmed bool     `json:"programmed"`
		Reasons    []struct{ Code, Message string }
	} `json:"addresses"`
	Problems []struct{ Object, Message string } `json:"problems"`
}

func (f *fanfare) status() (s speakerStatus, err error) {
	out, err := exec.CommandContext(f.Context(), f.binary, "status", "--json", "--run-dir", f.runDir()).CombinedOutput()
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, out)
	}
	return s, json.Unmarshal(out, &s)
}

// forwards returns an error unless the speaker reports that it forwards addr, and the
// kernel has it.
func (f *fanfare) forwards(addr string) error {
	s, err := f.status()
	if err != nil {
		return err
	}
	for _, a := range s.Addresses {
		if a.Address != addr || !a.Programmed {
			continue
		}
		out, err := exec.CommandContext(f.Context(), "nft", "list", "set", "inet", "fanfare", "vips4").CombinedOutput()
		if err != nil || !strings.Contains(string(out), addr) {
			return fmt.Errorf("the speaker reports %s as forwarded, the kernel: %v %s", addr, err, out)
		}
		return nil
	}
	return fmt.Errorf("%s is not forwarded: %+v", addr, s)
}

// get returns an object, or nil if it does not exist.
func (f *fanfare) get(gvk schema.GroupVersionKind, name string) (*unstructured.Unstructured, error) {
	all, err := f.Admin().List(f.Context(), gvk)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].GetName() == name {
			return &all[i], nil
		}
	}
	return nil, nil
}

var serviceKind = schema.GroupVersionKind{Version: "v1", Kind: "Service"}

// assigned returns the address in a Service's status.
func (f *fanfare) assigned(name string) (string, error) {
	o, err := f.get(serviceKind, name)
	if err != nil || o == nil {
		return "", errors.Join(err, fmt.Errorf("service %s: %v", name, o))
	}
	ingress, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress")
	if len(ingress) == 0 {
		return "", fmt.Errorf("service %s has no address: %v", name, o.Object["status"])
	}
	return ingress[0].(map[string]any)["ip"].(string), nil
}

const oneNode = `
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 127.0.0.1}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24]}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor9}
spec: {peerAddress: 127.0.0.9, peerASN: 65000, myASN: 65001}
`

func oneService(name, pod string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: default, name: %[1]s}
spec: {type: LoadBalancer, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [%[2]s], nodeName: n1, conditions: {ready: true}}]
`, name, pod)
}

// The controller claims an address for a new Service and writes it to the status, and the
// speaker forwards and reports it. Then the API server is down and the speaker is killed:
// the next speaker continues with the stored snapshot, and with the API server once that is
// back. Both programs have only the rights of rbac.yaml.
func TestServiceFromAPIServerToKernel(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+oneService("web", "10.244.1.5")))

		var vip string
		await(t, time.Minute, "an address", func() (err error) { vip, err = f.assigned("web"); return err })
		await(t, time.Minute, "forwarding", func() error { return f.forwards(vip) })
		claim, err := f.get(kindOf("AddressClaim"), vip)
		if err != nil || claim == nil {
			t.Fatalf("claim of %s: %v, %v", vip, claim, err)
		}
		await(t, time.Minute, "a SpeakerStatus", func() error {
			o, err := f.get(kindOf("SpeakerStatus"), "n1")
			if err != nil || o == nil {
				return errors.Join(err, errors.New("there is none"))
			}
			if n, _, _ := unstructured.NestedInt64(o.Object, "status", "addresses", "forwarded"); n != 1 {
				return fmt.Errorf("forwarded %d in %v", n, o.Object["status"])
			}
			return nil
		})
		await(t, time.Minute, "the stored snapshot",
			func() error { _, err := os.Stat(filepath.Join(f.runDir(), "cluster.json")); return err })

		f.APIServer.Kill()
		speaker.kill()
		f.speaker()
		await(t, time.Minute, "forwarding without the API server", func() error {
			s, err := f.status()
			if err != nil {
				return err
			}
			if len(s.Problems) == 0 || s.Problems[0].Object != "API server" {
				return fmt.Errorf("problems %v: want one with the API server", s.Problems)
			}
			return f.forwards(vip)
		})

		must(t, f.StartAPIServer(t.Context()))
		must(t, f.Admin().Apply(t.Context(), oneService("late", "10.244.1.6")))
		var late string
		await(t, 60*time.Second, "an address after the outage",
			func() (err error) { late, err = f.assigned("late"); return err })
		await(t, 60*time.Second, "forwarding after the outage",
			func() error { return errors.Join(f.forwards(late), f.forwards(vip)) })
		if again, err := f.assigned("web"); err != nil || again != vip || late == vip {
			t.Errorf("web had %s, has %s (%v); late has %s", vip, again, err, late)
		}
	})
}

func kindOf(kind string) schema.GroupVersionKind { return v1alpha1.GroupVersion.WithKind(kind) }
