package kube

import "time"

// NodeGrace is the time after which a control plane WithKubelets marks a silent kubelet's
// node as not Ready.
const NodeGrace = 10 * time.Second

// WithKubelets makes a control plane for kubelets that run pods: it schedules pods, gives
// them service accounts with tokens and the Service "kubernetes", and evicts them from dead
// nodes. Its address must not be on loopback.
func WithKubelets(c *Cluster) { c.kubelets = true }

// admission returns the API server's flags for the admission of pods.
func (c *Cluster) admission() []string {
	if c.kubelets {
		return []string{
			"--enable-admission-plugins=NodeRestriction",
			// No kube-proxy runs beside the API server: it asks the pods of webhooks themselves.
			"--enable-aggregator-routing",
			// For kubectl exec.
			"--kubelet-client-certificate=" + c.path("kubelet-client.crt"),
			"--kubelet-client-key=" + c.path("kubelet-client.key"),
		}
	}
	// Pods are mere objects and need no token. The Service "kubernetes" needs no endpoints,
	// which may not be on loopback.
	return []string{"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"}
}

// controllers returns the controller manager's flags.
func (c *Cluster) controllers() []string {
	if c.kubelets {
		return []string{
			"--controllers=*,-node-ipam-controller", // The test that creates the nodes adds the routes to their pods.
			"--service-account-private-key-file=" + c.path("sa.key"), "--root-ca-file=" + c.path("ca.crt"),
			// Kubernetes' default is 50 s. Kubelets must renew their leases accordingly.
			"--node-monitor-grace-period=" + NodeGrace.String(), "--node-monitor-period=1s",
		}
	}
	return []string{
		"--allocate-node-cidrs", "--cluster-cidr=10.244.0.0/16,fd00:244::/48", "--node-cidr-mask-size-ipv4=24",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		// Tests write the nodes: a missing lease renewal must not taint them.
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
