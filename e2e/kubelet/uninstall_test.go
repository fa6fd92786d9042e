package kubelet

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// The commands of docs/install.md remove everything from every node: the kernel's tables,
// sets and rules, and the files. The workload and other programs' rules stay.
func TestUninstall(t *testing.T) {
	c, ctx := kubelets(t), t.Context()
	c.expectLeft(t, true)
	must(t, c.stop(ctx))
	c.expectLeft(t, false)
	must(t, c.remove(ctx))
}

// stop stops Fanfare on all nodes and removes what it left on them, as docs/install.md says.
func (c *cluster) stop(ctx context.Context) error {
	c.installed = false
	return c.kubectlEach(ctx,
		[]string{"-n", "fanfare-system", "delete", "daemonset/speaker", "deployment/controller"},
		[]string{"apply", "-k", "../../manifests/uninstall"},
		[]string{"-n", "fanfare-system", "rollout", "status", "daemonset/cleanup", timeout})
}

// remove deletes the rest.
func (c *cluster) remove(ctx context.Context) error {
	return c.kubectlEach(ctx,
		[]string{"delete", "-k", "../../manifests/uninstall"},
		[]string{"delete", "--ignore-not-found", "-k", "../../manifests"})
}

func (c *cluster) kubectlEach(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if _, err := c.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// expectLeft checks that every node has something of Fanfare, or that none has.
func (c *cluster) expectLeft(t *testing.T, want bool) {
	t.Helper()
	for _, n := range nodes {
		all, err := c.left(t.Context(), n)
		must(t, err)
		if (len(all) > 0) != want {
			t.Errorf("%s has of Fanfare, want %t:\n%s", n, want, strings.Join(all, "\n"))
		}
	}
}

// left returns what Fanfare has left in the kernel and the files of a node.
func (c *cluster) left(ctx context.Context, node string) (all []string, err error) {
	for _, command := range [][]string{
		{"nft", "list", "tables"}, {"iptables-save"}, {"ip6tables-save"}, {"iptables-legacy-save"},
		{"find", "/run/fanfare", "/sys/fs/bpf", "-mindepth", "1"},
	} {
		out, err := c.kubeNodes[node].run(ctx, command...)
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", command[0], node, err)
		}
		for line := range strings.Lines(out) {
			if strings.Contains(strings.ToLower(line), "fanfare") {
				all = append(all, command[0]+": "+strings.TrimSpace(line))
			}
		}
	}
	return all, nil
}
