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
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fanfare-lb/fanfare/controller"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// leaseNamespace is the namespace of the nodes' Leases, in manifests/.
const leaseNamespace = "fanfare-node-lease"

// leaseName is the name of the Lease by which controllers elect a leader. The Role in
// manifests/ permits this name only.
const leaseName = "fanfare-controller"

// podNamespace is the file in which the kubelet gives a pod the name of its namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// A controllerFlags value holds the flags of `fanfare controller`, as the user wrote them; options
// converts them.
type controllerFlags struct {
	kubeconfig string
	elect      bool   // of several replicas, one writes
	namespace  string // of the Lease and the Secret
	monitoring monitoringFlags
	logLevel   string
	settleTime time.Duration
	key        string // name of the Secret; empty: none
	class      classFlags
}

// add defines the flags. manifests/controller.yaml sets some of them.
func (f *controllerFlags) add(set *pflag.FlagSet) {
	addKubeconfig(set, &f.kubeconfig)
	set.BoolVar(&f.elect, "leader-elect", false, "write only while holding the Lease "+leaseName)
	set.StringVar(&f.namespace, "namespace", "",
		"namespace of the Lease and of the members Secret; default: the pod's namespace, else "+
			cluster.DefaultNamespace)
	f.monitoring.add(set, "7873")
	set.DurationVar(&f.settleTime, "l2-settle-time", controller.DefaultSettleTime,
		"how long a change of nodes must last before addresses are spread again; failover does not wait for it")
	set.StringVar(&f.key, "members-secret", "",
		"Secret with the speakers' shared key, created if it is missing; empty: do not create one")
	f.class.add(set)
	set.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// options checks the flags and turns them into the options of a controller. It sends no
// request to the API server yet. Replicas differ in Instance only, which is also their identity
// in the election.
func (f *controllerFlags) options() (o controller.Options, err error) {
	log, err := logger(f.logLevel)
	if err != nil {
		return o, err
	}
	// Without a delay, a node that flaps would move addresses each time.
	if f.settleTime <= 0 {
		return o, fmt.Errorf("--l2-settle-time %s: must be more than 0", f.settleTime)
	}
	config, err := apiConfig(f.kubeconfig)
	if err != nil {
		return o, err
	}
	classes, err := f.class.classes("")
	if err != nil {
		return o, err
	}
	m, err := f.monitoring.options(config)
	if err != nil {
		return o, err
	}
	o = controller.Options{
		Config: config, Monitoring: m, Instance: instance(), Log: log, Registry: registry(), SettleTime: f.settleTime,
		Classes: classes,
	}
	// The controller opens the API server itself: it serves /readyz meanwhile.
	o.Open = func(ctx context.Context) (cluster.Source, error) {
		return openAPI(ctx, config, classes, log, o.Registry)
	}
	if f.key != "" {
		o.Key = cluster.Name{Namespace: cmp.Or(f.namespace, ownNamespace()), Name: f.key}
	}
	// Without election, claims still prevent two Services with one address. Two controllers would only
	// write more, and refuse each other's versions.
	if f.elect {
		o.Election = &controller.Election{
			Namespace: cmp.Or(f.namespace, ownNamespace()), Name: leaseName, Identity: o.Instance,
		}
	}
	return o, nil
}

// controllerCommand allocates addresses, by the rules of internal/ipam. It runs until SIGTERM;
// the next controller needs nothing from it but the objects in the API server.
func controllerCommand() *cobra.Command {
	var flags controllerFlags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Allocate addresses to LoadBalancer Services through the API server",
		Long: `Allocate addresses to LoadBalancer Services through the API server.

An AddressClaim object claims each address before the controller writes it into
the Service's status, so that no address is ever allocated twice, however many
controllers there are. With --leader-elect one of them writes and the others
wait.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := flags.options()
			if err != nil {
				return err
			}
			ctx, _, stop := signals(cmd.Context())
			defer stop()
			// An error after SIGTERM results from the cancelled context: exit with status 0.
			if err := controller.Run(ctx, o); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		},
	}
	flags.add(cmd.Flags())
	return cmd
}

// openAPI watches what the controller reads: no EndpointSlices, which are most of the objects of
// a large cluster, unless addresses of layer 2 are spread over nodes.
func openAPI(ctx context.Context, config *rest.Config, classes cluster.Classes, log *slog.Logger,
	r prometheus.Registerer) (cluster.Source, error) {
	return watch.OpenAPI(ctx, config, watch.Options{
		Scope:              cluster.Scope{NoSecrets: true, Classes: classes},
		SkipEndpointSlices: true, L2: watch.L2Speakers, Log: log, Registerer: r,
	})
}

// addKubeconfig defines a flag of all commands that use an API server.
func addKubeconfig(set *pflag.FlagSet, file *string) {
	const usage = "kubeconfig file for the API server; default: the pod's service account"
	set.StringVar(file, "kubeconfig", "", usage)
}

// apiConfig returns the configuration for the API server: from a kubeconfig file, or, if that is
// empty, from the pod's service account. Its errors name the flag that helps.
func apiConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("--kubeconfig: missing, and this process is not in a pod; give a kubeconfig file")
		}
		if err != nil {
			return nil, fmt.Errorf("the pod's service account: %w", err)
		}
		return withUserAgent(c), nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return withUserAgent(c), nil
}

// withUserAgent sets the user agent of requests, for audit logs.
func withUserAgent(c *rest.Config) *rest.Config {
	// A version as git describes it may contain a space, which would end the product token
	// (RFC 9110 §10.1.5).
	return rest.AddUserAgent(c, "fanfare/"+strings.ReplaceAll(version(), " ", "-"))
}

// ownNamespace returns the pod's namespace, or that of the manifests for a process that is not
// in a pod. The Role for Leases and the Secret must be in this namespace.
func ownNamespace() string {
	b, _ := os.ReadFile(podNamespace) // the file exists only in a pod
	return cmp.Or(strings.TrimSpace(string(b)), cluster.DefaultNamespace)
}

// instance returns an identity for this process: the host's name, and a random part. With the
// host's name alone, a restarted controller would believe that it still holds the Lease.
func instance() string {
	host, _ := os.Hostname() // the random part is enough
	return host + "_" + rand.Text()[:8]
}
