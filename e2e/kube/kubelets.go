package kube

import "time"

// NodeGrace is how long a control plane WithKubelets believes in a node whose
// kubelet is silent.
const NodeGrace = 10 * time.Second

// An Option says how a control plane differs from that of most tests.
type Option func(*Cluster)

// WithKubelets makes it one for kubelets that run pods: pods are scheduled, have
// service accounts with tokens, find the API server by the Service "kubernetes",
// and are evicted from nodes that are gone. Its address must not be on loopback.
func WithKubelets(c *Cluster) { c.kubelets = true }

// WithBitmap makes it give out ClusterIPs as Kubernetes did before 1.33. Since then
// the API server counts all that are taken, twice, at each one that it gives out, for
// its metrics (ipallocator.Used): of thousands of Services each costs more than the
// one before, and most of the time passes there.
func WithBitmap(c *Cluster) {
	c.flags = append(c.flags, "--emulated-version=kube=1.33", "--feature-gates=MultiCIDRServiceAllocator=false")
}

// admission are the API server's flags that decide what becomes of a pod.
func (c *Cluster) admission() []string {
	if c.kubelets {
		return []string{"--enable-admission-plugins=NodeRestriction"}
	}
	// Pods are objects, and need no token. The Service "kubernetes" needs no
	// endpoints, which may not be on loopback.
	return []string{"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"}
}

// controllers are the controller manager's flags that decide what it controls.
func (c *Cluster) controllers() []string {
	if c.kubelets {
		return []string{
			"--controllers=*,-node-ipam-controller", // The test that creates the nodes routes to their pods.
			"--service-account-private-key-file=" + c.path("sa.key"), "--root-ca-file=" + c.path("ca.crt"),
			// Kubernetes' default is 50 s. Kubelets must renew their leases accordingly.
			"--node-monitor-grace-period=" + NodeGrace.String(), "--node-monitor-period=1s",
		}
	}
	return []string{
		"--allocate-node-cidrs", "--cluster-cidr=10.244.0.0/16,fd00:244::/48", "--node-cidr-mask-size-ipv4=24",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		// A node is what tests write. A lease that is not renewed is no reason to
		// taint it.
		"--controllers=endpointslice-controller,node-ipam-controller,namespace-controller,garbage-collector-controller",
	}
}

func (c *Cluster) startScheduler() (err error) {
	kubeconfig := c.path("scheduler.kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, "system:kube-scheduler", "system:masters"); err != nil {
		return err
	}
	c.Scheduler, err = c.start("kube-scheduler", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0")
	return err
}
