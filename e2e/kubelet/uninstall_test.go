package kubelet

import (
	"context"
	"strings"
	"testing"
)

// The commands of docs/install.md remove everything from every node: the kernel's tables,
// sets and rules, and the files. The workload and other programs' rules stay.
func TestUninstall(t *testing.T) {
	c, ctx := kubelets(t), t.Context()
	t.Cleanup(func() {
		if err := c.install(context.Background()); err != nil {
			t.Errorf("install again: %v", err)
		}
	})
	must := func(args ...string) {
		t.Helper()
		if _, err := c.kubectl(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	left := func(node string) (all []string) {
		t.Helper()
		for _, command := range [][]string{
			{"nft", "list", "tables"}, {"iptables-save"}, {"ip6tables-save"}, {"iptables-legacy-save"},
			{"find", "/run/fanfare", "/sys/fs/bpf", "-mindepth", "1"},
		} {
			out, err := c.machines[node].run(ctx, command...)
			if err != nil {
				t.Fatalf("%s on %s: %v", command[0], node, err)
			}
			for line := range strings.Lines(out) {
				if strings.Contains(strings.ToLower(line), "fanfare") {
					all = append(all, command[0]+": "+strings.TrimSpace(line))
				}
			}
		}
		return all
	}
	for _, n := range nodes {
		if len(left(n)) == 0 {
			t.Fatalf("%s has nothing of Fanfare before", n)
		}
	}
	must("-n", "fanfare-system", "delete", "daemonset/speaker", "deployment/controller")
	must("apply", "-k", "../../manifests/uninstall")
	must("-n", "fanfare-system", "rollout", "status", "daemonset/cleanup", timeout)
	for _, n := range nodes {
		if all := left(n); len(all) > 0 {
			t.Errorf("on %s is left:\n%s", n, strings.Join(all, "\n"))
		}
	}
	must("delete", "-k", "../../manifests/uninstall")
	must("delete", "--ignore-not-found", "-k", "../../manifests")
}
