package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fanfare-lb/fanfare/controller"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// defaultNamespace is the namespace of manifests/.
const defaultNamespace = "fanfare-system"

// leaseNamespace is the namespace of the nodes' Leases, in manifests/.
const leaseNamespace = "fanfare-node-lease"

// leaseName is the name of the Lease by which controllers elect a leader.
const leaseName = "fanfare-controller"

// podNamespace is where a pod finds the name of its namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func controllerCommand() *cobra.Command {
	var (
		kubeconfig string
		elect      bool
		namespace  string
		listen     string
		logLevel   string
		settle     time.Duration
		key        string
		classOnly  bool
	)
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Give addresses to LoadBalancer Services through the API server",
		Long: `Give addresses to LoadBalancer Services through the API server.

Each address is claimed by an AddressClaim object first, and written into the
Service's status then, so that no address is ever given twice, however many
controllers there are. With --leader-elect one of them writes and the others
wait.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(logLevel)
			if err != nil {
				return err
			}
			if settle <= 0 {
				return fmt.Errorf("--l2-settle-time %s: must be more than 0", settle)
			}
			config, err := apiConfig(kubeconfig)
			if err != nil {
				return err
			}
			ctx, _, stop := signals(cmd.Context())
			defer stop()
			o := controller.Options{
				Config: config, Listen: listen, Instance: instance(), Log: log, Registry: registry(), Settle: settle, ClassOnly: classOnly,
			}
			o.Open = func(ctx context.Context) (cluster.Source, error) {
				return openAPI(ctx, config, classOnly, log, o.Registry)
			}
			if key != "" {
				o.Key = cluster.Name{Namespace: cmp.Or(namespace, ownNamespace()), Name: key}
			}
			if elect {
				o.Election = &controller.Election{Namespace: cmp.Or(namespace, ownNamespace()), Name: leaseName, Identity: o.Instance}
			}
			if err := controller.Run(ctx, o); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		},
	}
	set := cmd.Flags()
	set.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file to reach the API server with; default the pod's own account")
	set.BoolVar(&elect, "leader-elect", false, "write only while holding the Lease "+leaseName)
	set.StringVar(&namespace, "namespace", "", "namespace of the Lease and of the speakers' key; default the pod's own, else "+defaultNamespace)
	set.StringVar(&listen, "metrics-address", "", "TCP address for /metrics, /healthz and /readyz, such as :7473; empty for none")
	set.DurationVar(&settle, "l2-settle-time", controller.DefaultSettle, "how long a change of a node must last before addresses are spread over nodes again; failover does not wait for it")
	set.StringVar(&key, "members-secret", "", "Secret with the speakers' shared key, created if it is missing; empty: do not create one")
	set.BoolVar(&classOnly, "class-only", false, classOnlyUsage)
	set.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// classOnlyUsage is for controllers and speakers, which must agree.
const classOnlyUsage = "serve Services with loadBalancerClass " + cluster.Class + " only, and leave those without a class to other implementations"

// openAPI watches what the controller reads: no endpoints, unless addresses are spread over
// nodes.
func openAPI(ctx context.Context, config *rest.Config, classOnly bool, log *slog.Logger, r prometheus.Registerer) (cluster.Source, error) {
	return cluster.OpenAPI(ctx, config, cluster.Options{SkipEndpointSlices: true, SkipSecrets: true,
		L2: cluster.L2Speakers, ClassOnly: classOnly, Log: log, Registerer: r})
}

// apiConfig returns the configuration for the API server: from a kubeconfig file, or within
// a pod.
func apiConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("--kubeconfig: missing, and this process is not in a pod; give a kubeconfig file")
		}
		if err != nil {
			return nil, fmt.Errorf("the pod's service account: %w", err)
		}
		return agent(c), nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return agent(c), nil
}

// agent sets the user agent of requests, for audit logs.
func agent(c *rest.Config) *rest.Config {
	return rest.AddUserAgent(c, "fanfare/"+strings.ReplaceAll(version(), " ", "-"))
}

// ownNamespace is the pod's namespace, or that of the manifests.
func ownNamespace() string {
	b, _ := os.ReadFile(podNamespace) // the file exists only in a pod
	return cmp.Or(strings.TrimSpace(string(b)), defaultNamespace)
}

// instance identifies this process: its host, and a part that another process on the host,
// or a restarted one, does not have.
func instance() string {
	host, _ := os.Hostname() // the random part is enough
	return host + "_" + rand.Text()[:8]
}
