package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/watch"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// defaultRunDir is on a tmpfs. The saved state describes the kernel's tables, so that it must
// survive a restart of the speaker and must not survive one of the node.
const defaultRunDir = "/run/fanfare"

// The flags of nodeFlags have the same names and defaults for `fanfare speaker` and `fanfare plan`, so that
// a plan with the speaker's arguments decides as the speaker does.

// A nodeFlags value holds the flags that decide what a node does: the same for the speaker
// and for a plan.
type nodeFlags struct {
	files       string // folder of YAML; empty: an API server
	kubeconfig  string // empty: the pod's service account
	node        string // name of the Node object
	runDir      string
	detectLocal []string // criteria; a client is a pod of this node by any of them
	snat        snatFlags
	health      string // a key of healthChecks
	class       classFlags
	classes     cluster.Classes // what config makes of class
	// allNodes: the source needs all Nodes, because speakers communicate.
	allNodes bool
}

// add defines the flags of the speaker and of a plan.
func (f *nodeFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.files, "files", "", "folder of Kubernetes YAML, instead of an API server; rename "+
		"complete files into it")
	addKubeconfig(set, &f.kubeconfig)
	set.StringVar(&f.node, "node-name", os.Getenv("NODE_NAME"), "name of this node's Node object; default: $NODE_NAME")
	set.StringVar(&f.runDir, "run-dir", defaultRunDir, "folder of the socket and of state for the next speaker")
	set.StringSliceVar(&f.detectLocal, "detect-local", []string{"auto"},
		"which clients are pods of this node: auto, node-cidr (the Node's podCIDRs), cidr=PREFIX, "+
			"interface-prefix=NAME, bridge=NAME")
	f.snat.add(set)
	set.StringVar(&f.health, "health-check-node-ports", "labelled",
		"Services whose healthCheckNodePort is served: labelled (with service.kubernetes.io/service-proxy-name, "+
			"which kube-proxy leaves alone), all (without kube-proxy) or none")
	f.class.add(set)
}

// config checks the flags and turns them into the configuration of a decision. It contains no
// interfaces: the speaker watches them, and a plan adds the known ones.
func (f *nodeFlags) config() (plan.Config, error) {
	c := plan.Config{Node: f.node}
	if f.node == "" {
		return c, errors.New("--node-name: missing; give the name of this node's Node object")
	}
	if f.files != "" && f.kubeconfig != "" {
		return c, errors.New("--files and --kubeconfig: give one of them; a speaker reads a folder or an API server")
	}
	var err error
	if f.classes, err = f.class.classes(f.files); err != nil {
		return c, err
	}
	for _, d := range f.detectLocal {
		if err := addCriterion(&c, d); err != nil {
			return c, fmt.Errorf("--detect-local %q: %w", d, err)
		}
	}
	// The order of flags has no meaning. Sorted, it does not change the rules in the kernel.
	slices.SortFunc(c.DetectLocal.CIDRs, netip.Prefix.Compare)
	var ok bool
	if c.HealthChecks, ok = healthChecks[f.health]; !ok {
		return c, fmt.Errorf("--health-check-node-ports %q: want labelled, all or none", f.health)
	}
	c.SNAT, err = f.snat.policy()
	return c, err
}

// healthChecks are the values of --health-check-node-ports. If kube-proxy serves the same Service,
// only one of them can listen on the port.
var healthChecks = map[string]plan.HealthChecks{
	"labelled": plan.HealthChecksLabelled, "all": plan.HealthChecksAll, "none": plan.HealthChecksNone,
}

// addCriterion adds one criterion of --detect-local. They correspond to the modes of kube-proxy's
// --detect-local-mode. Of several bridges or interface prefixes the last one counts.
func addCriterion(c *plan.Config, criterion string) error {
	kind, value, _ := strings.Cut(criterion, "=")
	const want = "want auto, node-cidr, cidr=PREFIX, interface-prefix=NAME or bridge=NAME"
	if kind != "auto" && kind != "node-cidr" && value == "" {
		return errors.New(want)
	}
	switch kind {
	case "auto":
		c.DetectPods = true
	case "node-cidr":
		c.NodeCIDR = true
	case "cidr":
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return fmt.Errorf("want a prefix such as 10.244.0.0/16: %w", err)
		}
		// Bits of the host are dropped: 10.244.1.7/16 is 10.244.0.0/16.
		c.DetectLocal.CIDRs = append(c.DetectLocal.CIDRs, p.Masked())
	case "interface-prefix":
		c.DetectLocal.InterfacePrefix = value
	case "bridge":
		c.DetectLocal.Bridge = value
	default:
		return errors.New(want)
	}
	return nil
}

// source opens a folder or an API server, and returns when it has a first snapshot. inStep reports
// whether the source has what the API server has, rather than what the previous speaker saved or
// what was known before an outage; it is nil for a folder.
func (f *nodeFlags) source(ctx context.Context, log *slog.Logger,
	r prometheus.Registerer) (source cluster.Source, inStep func() bool, err error) {
	if f.files != "" {
		source, err = f.folder(log, func(known *cluster.Configuration) (*watch.Files, error) {
			return watch.OpenFiles(ctx, f.files, known, log)
		})
		return source, nil, err
	}
	config, err := f.api()
	if err != nil {
		return nil, nil, err
	}
	known := f.savedConfiguration(log)
	open := func(ctx context.Context, refused func()) (watch.LiveSource, error) {
		// A speaker that uses only BGP and has no members needs its own Node only.
		one := f.node
		if f.allNodes {
			one = ""
		}
		return watch.OpenAPI(ctx, config, watch.Options{
			Scope:    cluster.Scope{ReadOnly: true, SecretsOf: f.node, Namespace: ownNamespace(), Classes: f.classes},
			NodeName: one, L2: watch.L2Nodes, Known: known, Refused: refused, Log: log, Registerer: r,
		})
	}
	// A speaker that restarts during an outage of the API server continues with what the
	// previous one saved a short time ago, and replaces it once the API server responds.
	standby, err := watch.OpenStandby(ctx, rundir.Saved(f.runDir), log, open)
	if err != nil {
		return nil, nil, err
	}
	return ipam.NewReader(standby), standby.InStep, nil
}

// savedConfiguration returns the last valid versions of the objects, saved by the previous
// speaker. Without them, an invalid object announces nothing. An unreadable file is logged and is
// not an error: a speaker that announces less is better than none.
func (f *nodeFlags) savedConfiguration(log *slog.Logger) *cluster.Configuration {
	known, err := rundir.Configuration(f.runDir)
	if err != nil {
		log.Error("cannot read the saved configuration", "err", err)
	}
	return known
}

// api returns the configuration for the API server, nil for a folder.
func (f *nodeFlags) api() (*rest.Config, error) {
	if f.files != "" {
		return nil, nil
	}
	config, err := apiConfig(f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("no --files, and no API server: %w", err)
	}
	return config, nil
}

// folder reads the folder, by open, and allocates addresses as a controller would. Services keep the
// addresses of the last run: without a controller, the run directory is the only record of them.
func (f *nodeFlags) folder(
	log *slog.Logger, open func(known *cluster.Configuration) (*watch.Files, error),
) (cluster.Source, error) {
	held, err := rundir.Assignments(f.runDir)
	if err != nil {
		log.Error("cannot read the saved addresses; Services may get others than before", "err", err)
	}
	files, err := open(f.savedConfiguration(log))
	if err != nil {
		return nil, err
	}
	return ipam.NewSource(files, held), nil
}
