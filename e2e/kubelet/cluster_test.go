package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// nodes are the nodes with kubelets of the shared cluster. The lab's third node has only links there.
var nodes = []string{"n1", "n2"}

// The control plane's node, and its addresses for the other nodes.
const controlPlane = "cp"

var (
	apiServer  = netip.MustParseAddr("172.31.0.1")
	management = func(node string) string { return "172.31.0.1" + node[1:] }
)

// A cluster is a lab with a control plane, and kubelets on its nodes.
type cluster struct {
	*kube.Lab
	kubeNodes map[string]*kubeNode

	options
	tools, kubeconfig string
	installed         bool // Fanfare runs, by the manifests
}

// options describe a cluster.
type options struct {
	id    string // see lab.Options
	nodes []string
	proxy kube.ProxyMode // of kube-proxy
}

// upCluster builds an empty cluster. The caller must take it down, also after an error.
func upCluster(ctx context.Context, o options, tools string) (*cluster, error) {
	c := &cluster{
		Lab: &kube.Lab{Proxies: map[string]*lab.Process{}}, kubeNodes: map[string]*kubeNode{}, options: o, tools: tools,
	}
	var err error
	if c.Lab.Lab, err = lab.Up(ctx, lab.Options{
		ID:       o.id,
		Topology: "../containerlab/fanfare.clab.yml",
		Overlays: []string{"../containerlab/overlays/control-plane.yml"},
		Objects:  "../containerlab/cluster",
		Slack:    lab.Shared,
	}); err != nil {
		return c, err
	}
	if err := c.sweepCgroups(ctx); err != nil {
		return c, err
	}
	if err := c.startControlPlane(ctx); err != nil {
		return c, err
	}
	if err := c.startNodes(ctx); err != nil {
		return c, err
	}
	_, err = c.kubectl(ctx, "wait", "node", "--all", "--for=condition=Ready", timeout)
	return c, err
}

func (c *cluster) startControlPlane(ctx context.Context) (err error) {
	cp := c.Namespace(controlPlane)
	for _, n := range c.nodes {
		// Routes for the API server's answers to pods and to programs in a node's network, which
		// reach it by the Service "kubernetes".
		for _, to := range []string{"10.244." + n[1:] + ".0/24", lab.NodeAddr(n, lab.ClientAddr).String()} {
			if _, err := cp.Run(ctx, "ip", "route", "add", to, "via", management(n)); err != nil {
				return err
			}
		}
	}
	c.Kubernetes, err = kube.StartIn(ctx, cp, c.tools, filepath.Join(c.Dir(), "kubernetes"), apiServer,
		kube.WithKubelets)
	if err != nil {
		return err
	}
	c.kubeconfig = filepath.Join(c.Dir(), "admin.kubeconfig")
	return c.Kubernetes.WriteKubeconfig(c.kubeconfig, "admin", "system:masters")
}

// startNodes boots the nodes and starts their kubelets and kube-proxies.
func (c *cluster) startNodes(ctx context.Context) error {
	pod, err := buildPodImage(c.Dir())
	if err != nil {
		return err
	}
	fanfare, err := buildFanfareImage(c.Dir())
	if err != nil {
		return err
	}
	var all errgroup.Group
	for _, n := range c.nodes {
		m := &kubeNode{node: n, dir: filepath.Join(c.Dir(), n), cgroup: cgroupPrefix + c.id + "-" + n, lab: c.Lab.Lab}
		c.kubeNodes[n] = m
		all.Go(func() error {
			if err := c.startNode(ctx, m, pod, fanfare); err != nil {
				return fmt.Errorf("node %s: %w", n, err)
			}
			return nil
		})
	}
	return all.Wait()
}

func (c *cluster) startNode(ctx context.Context, m *kubeNode, images ...string) error {
	// The podCIDR must match the lab's existing routes.
	err := c.Kubernetes.Admin().Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s}
spec: {podCIDR: 10.244.%[2]s.0/24, podCIDRs: [10.244.%[2]s.0/24]}
`, m.node, m.node[1:]))
	if err != nil {
		return err
	}
	if err := m.writeConfigs(); err != nil {
		return err
	}
	if err := c.Kubernetes.WriteKubeconfig(m.file("kubeconfig"), "system:node:"+m.node, "system:nodes"); err != nil {
		return err
	}
	if err := m.boot(ctx); err != nil {
		return err
	}
	for _, image := range images {
		if err := m.load(ctx, image); err != nil {
			return err
		}
	}
	return c.startServices(m)
}

// startServices starts the programs that a node starts when it boots.
func (c *cluster) startServices(m *kubeNode) error {
	return errors.Join(c.StartProxy(m.node, c.proxy), m.startKubelet(c.tools))
}

// powerOff is a power failure of a node: no router gets a NOTIFICATION, the links are down,
// and the kernel's tables are empty.
func (c *cluster) powerOff(ctx context.Context, node string) error {
	if err := c.setLinks(ctx, node, "down"); err != nil {
		return err
	}
	err := errors.Join(c.kubeNodes[node].powerOff(ctx), c.Proxies[node].Stop(syscall.SIGKILL, limit))
	for _, forget := range []string{"nft flush ruleset", "conntrack -F", "ip link delete cni0"} {
		_, e := c.Namespace(node).Run(ctx, strings.Fields(forget)...)
		err = errors.Join(err, e)
	}
	return err
}

// powerOn boots the node again.
func (c *cluster) powerOn(ctx context.Context, node string) error {
	if err := c.setLinks(ctx, node, "up"); err != nil {
		return err
	}
	if err := c.kubeNodes[node].boot(ctx); err != nil {
		return err
	}
	return c.startServices(c.kubeNodes[node])
}

// setLinks sets the state of the far ends of a node's links, so that the node keeps its
// routes.
func (c *cluster) setLinks(ctx context.Context, node, state string) error {
	var errs []error
	for _, far := range []string{"tor1", controlPlane} {
		_, err := c.Namespace(far).Run(ctx, "ip", "link", "set", "eth"+node[1:], state)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// kubectl runs kubectl on the control plane's node as an administrator.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	args = append([]string{c.tools, "kubectl", "--kubeconfig", c.kubeconfig, "--cache-dir",
		filepath.Join(c.Dir(), "kubectl")}, args...)
	out, err := c.Namespace(controlPlane).Run(ctx, args...)
	return strings.TrimSpace(out), err
}

// down removes every trace.
func (c *cluster) down(ctx context.Context) error {
	var errs []error
	for _, m := range c.kubeNodes {
		errs = append(errs, m.powerOff(ctx))
	}
	if c.Lab.Lab != nil {
		errs = append(errs, c.Down(), c.sweepCgroups(ctx))
	}
	return errors.Join(errs...)
}

// cgroupPrefix starts the names of all nodes' cgroups; the lab's and the node's names
// follow.
const cgroupPrefix = "fanfare-kubelet-"

// sweepCgroups removes the cgroups of clusters whose lab no longer exists: lab.Up removes
// the labs of dead processes and their programs.
func (c *cluster) sweepCgroups(ctx context.Context) error {
	left, err := filepath.Glob(filepath.Join(cgroups, "*", cgroupPrefix+"*-n?"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range left {
		name := filepath.Base(dir)
		id := strings.TrimPrefix(name[:len(name)-len("-n1")], cgroupPrefix)
		if _, err := os.Stat(filepath.Join(filepath.Dir(c.Dir()), id)); errors.Is(err, os.ErrNotExist) {
			errs = append(errs, removeCgroup(ctx, name))
		}
	}
	return errors.Join(errs...)
}
