package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// The commands of the README install the chart and give a Service an address, in a namespace of
// another name. The chart is upgraded, with its CRDs, rolled back and uninstalled: then no node
// has anything of Fanfare.
func TestHelm(t *testing.T) {
	c, ctx := anyKubelets(t), t.Context()
	c.linkTools(t)
	if c.installed {
		must(t, errors.Join(c.stop(ctx), c.remove(ctx)))
		// Addresses of the former pools would stay in their status.
		c.mustRun(t, "kubectl -n shop delete service local anywhere")
	}

	t.Cleanup(func() {
		if t.Failed() { // the other tests install Fanfare by its manifests
			t.Log(c.run(context.Background(), "helm uninstall fanfare --namespace lb-system; kubectl delete "+
				"--ignore-not-found namespace lb-system"))
		}
	})
	for i, step := range readmeSteps(t) {
		step.command = strings.ReplaceAll(step.command, "fanfare-system", "lb-system")
		step.output = strings.ReplaceAll(step.output, "fanfare-system", "lb-system")
		must(t, lab.Await(ctx, limit, step.command, func() error {
			out, err := c.run(ctx, step.command)
			if got, want := masked(out), masked(step.output); err == nil && got != want {
				err = fmt.Errorf("the README shows\n%s\nand it is\n%s", step.output, out)
			}
			// Only the last step, which looks, can be repeated.
			if err != nil && i < 3 {
				t.Fatal(err)
			}
			return err
		}))
	}
	c.expectLeft(t, true)

	// An older CRD, without a field.
	c.mustRun(t, `kubectl patch crd addresspools.fanfare.io --type=json -p '[{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/priority"}]'`)
	values := filepath.Join(c.Dir(), "values.yaml")
	must(t, os.WriteFile(values, []byte(`
speaker: {extraArgs: [--log-level=debug]}
pools: {routed: {announce: BGP, addresses: [192.0.2.0/24], priority: 7}}
peers:
  tor1: {peerAddress: 198.51.100.1, peerASN: 64496, myASN: 64497, holdTime: 3s, keepaliveTime: 1s, connectTime: 1s}
  signed: {peerAddress: 198.51.100.99, peerASN: 64496, myASN: 64497, passwordSecretRef: {name: signed}}
`), 0o644))
	c.mustRun(t, "helm upgrade fanfare charts/fanfare --namespace lb-system --reuse-values --wait --values "+values)
	if got := c.mustRun(t, "kubectl get addresspool routed -o jsonpath={.spec.priority}"); got != "7" {
		t.Errorf("the upgraded CRD dropped the field priority: %q, want 7", got)
	}
	c.expectArgs(t, "--log-level=debug", true)
	must(t, c.Kubernetes.Admin().Apply(ctx, service("local", "Local")))
	vip, err := c.address(ctx, "local")
	must(t, err)
	must(t, c.Router.AwaitNextHops(ctx, limit, vip, nodes...))
	_, err = c.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 80))
	must(t, err)
	must(t, lab.Await(ctx, limit, "a problem that names the pod's namespace", func() error {
		out, err := c.run(ctx, "kubectl get speakerstatuses -o json")
		if err == nil && !strings.Contains(out, "kubectl -n lb-system create role bgp-password-signed") {
			err = errors.New(out)
		}
		return err
	}))

	c.mustRun(t, "helm rollback fanfare 1 --namespace lb-system --wait")
	c.expectArgs(t, "--log-level=debug", false)
	if got := c.mustRun(t, "kubectl get addresspools -o name"); got != "addresspool.fanfare.io/lan" {
		t.Errorf("pools after the rollback: %s", got)
	}

	t.Log(c.mustRun(t, "helm uninstall fanfare --namespace lb-system"))
	c.expectLeft(t, false)
	must(t, lab.Await(ctx, limit, "the end of all pods and hooks", func() error {
		out, err := c.run(ctx, "kubectl -n lb-system get pods,daemonsets,jobs,serviceaccounts,roles -o name")
		if err == nil && out != "serviceaccount/default" {
			err = errors.New(out)
		}
		return err
	}))
	c.mustRun(t, "kubectl delete -f charts/fanfare/crds && kubectl delete namespace lb-system && kubectl -n shop "+
		"delete service --all")
}

func (c *cluster) bin() string { return filepath.Join(c.Dir(), "bin") }

// linkTools makes helm and kubectl programs in bin.
func (c *cluster) linkTools(t *testing.T) {
	t.Helper()
	c.mustRun(t, "mkdir -p "+c.bin()+" && for p in helm kubectl; do ln -sf "+c.tools+" "+c.bin()+"/$p; done")
}

// run runs a command in a shell at the module's root, as an administrator with Helm and kubectl.
func (c *cluster) run(ctx context.Context, command string) (string, error) {
	env := []string{"env", "--chdir=../..", "KUBECONFIG=" + c.kubeconfig, "HOME=" + c.Dir(),
		"PATH=" + c.bin() + ":/usr/bin:/bin"}
	out, err := c.Namespace(controlPlane).Run(ctx, append(env, "bash", "-euc", command)...)
	return strings.TrimSpace(out), err
}

func (c *cluster) mustRun(t *testing.T, command string) string {
	t.Helper()
	out, err := c.run(t.Context(), command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// expectArgs checks whether the speakers have a flag.
func (c *cluster) expectArgs(t *testing.T, flag string, want bool) {
	t.Helper()
	out := c.mustRun(t, "kubectl -n lb-system get pods -l app.kubernetes.io/component=speaker -o yaml")
	if strings.Contains(out, flag) != want {
		t.Errorf("pods of speakers have %s: want %t", flag, want)
	}
}

// A readmeStep is a command of the README, and what it prints.
type readmeStep struct{ command, output string }

// readmeSteps returns the commands that install Fanfare. A line after > continues a command.
func readmeSteps(t *testing.T) (steps []readmeStep) {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	must(t, err)
	block := regexp.MustCompile("(?s)```\n(\\$ helm install .*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("README.md has no block that begins with $ helm install")
	}
	for _, part := range strings.Split("\n"+string(block[1]), "\n$ ")[1:] {
		var s readmeStep
		for i, line := range strings.Split(part, "\n") {
			more, continues := strings.CutPrefix(line, "> ")
			switch {
			case i == 0:
				s.command = line
			case continues:
				s.command += "\n" + more
			default:
				s.output += line + "\n"
			}
		}
		steps = append(steps, s)
	}
	if len(steps) != 4 {
		t.Fatalf("%d commands in the README, want 4", len(steps))
	}
	return steps
}

// changing are parts of outputs that differ from run to run.
var changing = regexp.MustCompile(`(?m)LAST DEPLOYED: .*|\b10\.96\.\d+\.\d+|:\d{5}/|\b\d+[ms]\w*$`)

// warning is a line in which client-go, in Helm or kubectl, says that it repeats a request.
var warning = regexp.MustCompile(`(?m)^[IW]\d{4} .*\n`)

// masked removes them, and the width of columns.
func masked(out string) string {
	out = warning.ReplaceAllString(out, "")
	out = changing.ReplaceAllString(strings.TrimSpace(out), "~")
	return regexp.MustCompile(` +`).ReplaceAllString(out, " ")
}
