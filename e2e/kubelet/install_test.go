package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// web is a workload as recommended: it has a readiness probe, and serves for a while after
// SIGTERM, because clients and routers do not react at once.
//
// Its sockets have no TIME-WAIT: the packets of a connection that the router moves to
// another pod must be answered by RST. A socket in TIME-WAIT, of the same client port
// through the other Service, would not answer.
//
// The probe tolerates a busy machine, because a pod that is not ready for a moment would
// change the route. The CPU request makes the kernel schedule the pod beside other
// containers; without it the pod would wait for seconds while others start.
const web = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: shop, name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 20
      securityContext: {sysctls: [{name: net.ipv4.tcp_max_tw_buckets, value: "0"}]}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {app: web}}
          matchLabelKeys: [pod-template-hash]
      containers:
        - name: web
          image: ` + podImage + `
          imagePullPolicy: Never
          args: [web]
          env:
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
          resources: {requests: {cpu: 200m}}
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 6}
          lifecycle: {preStop: {sleep: {seconds: 3}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {namespace: shop, name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
`

// service returns one of the two Services.
func service(name, policy string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %s}
spec:
  type: LoadBalancer
  externalTrafficPolicy: %s
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`, name, policy)
}

// installation installs Fanfare.
var installation = [][]string{
	{"apply", "-k", "../../manifests"},
	{"-n", "fanfare-system", "rollout", "status", "deployment/controller", timeout},
	{"-n", "fanfare-system", "rollout", "status", "daemonset/speaker", timeout},
	{"wait", "crd", "--all", "--for=condition=Established", timeout},
}

// routed adds the lab's pool and router.
var routed = []string{"apply", "-f", "../containerlab/cluster/pool.yaml", "-f", "../containerlab/cluster/tor1.yaml"}

// install installs Fanfare as the install page says, with the lab's pool and router, and
// then the workload.
func (c *cluster) install(ctx context.Context) error {
	if err := c.kubectlEach(ctx, append(installation, routed)...); err != nil {
		return err
	}
	if err := c.Kubernetes.Admin().Apply(ctx,
		service("local", "Local")+"---"+service("anywhere", "Cluster")); err != nil {
		return err
	}
	c.installed = true
	return nil
}

// startWeb starts the pods that the Services select.
func (c *cluster) startWeb(ctx context.Context) error {
	if err := c.Kubernetes.Admin().Apply(ctx, web); err != nil {
		return err
	}
	_, err := c.kubectl(ctx, "-n", "shop", "rollout", "status", "deployment/web", timeout)
	return err
}

// address waits for a Service's address.
func (c *cluster) address(ctx context.Context, name string) (addr netip.Addr, err error) {
	err = lab.Await(ctx, limit, "an address for shop/"+name, func() error {
		out, err := c.kubectl(ctx, "-n", "shop", "get", "service", name, "-o",
			"jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err != nil {
			return err
		}
		addr, err = netip.ParseAddr(out)
		return err
	})
	return addr, err
}

// diagnostics returns the state and the logs of a cluster in which a test failed.
func (c *cluster) diagnostics() string {
	var b strings.Builder
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{{"get", "nodes,pods,services,endpointslices", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"}} {
		if c.kubeconfig == "" {
			break
		}
		out, err := c.kubectl(ctx, args...)
		fmt.Fprintf(&b, "kubectl %s\n%s\n", strings.Join(args, " "), errors.Join(err, errors.New(out)))
	}
	if c.Lab.Lab == nil {
		return b.String()
	}
	for _, pattern := range []string{"log/*.log", "kubernetes/*.log", "n?/pods/*/*/*.log"} {
		logs, _ := filepath.Glob(filepath.Join(c.Dir(), pattern)) // The patterns are valid.
		for _, log := range logs {
			text, err := os.ReadFile(log)
			lines := strings.SplitAfter(string(text), "\n")
			fmt.Fprintf(&b, "%s %v\n%s\n", log, err, strings.Join(lines[max(0, len(lines)-15):], ""))
		}
	}
	return b.String()
}
