package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

const (
	fanfareNode = "n1" // the node with Fanfare
	proxyNode   = "n3" // the node with kube-proxy
	// eventLimit bounds the wait for the effect of one event.
	eventLimit = 10 * time.Minute
	// fillLimit bounds the wait for thousands of Services.
	fillLimit = 30 * time.Minute
)

// A bench is a lab for measurements.
type bench struct {
	*kube.Lab
	tools string
	log   *slog.Logger
	api   *api
	seen  *measure.Addresses
	stop  context.CancelFunc // ends the watch

	background int // number of background Services
	created    int // number of measured Services
	churned    int // changes of background Services' endpoints
	proxy      *lab.Process
	// pids are the measured processes by name.
	pids []measured
}

type measured struct {
	name string
	pid  func() int
}

// newBench starts everything but kube-proxy.
func newBench(ctx context.Context, l *kube.Lab, tools string, log *slog.Logger) (*bench, error) {
	b := &bench{Lab: l, tools: tools, log: log}
	cfg, err := l.Kubernetes.Config("bench", "system:masters")
	if err != nil {
		return nil, err
	}
	if b.api, err = newAPI(cfg); err != nil {
		return nil, err
	}
	// The lab's own pool is too small.
	if err := errors.Join(l.Cluster.Delete("pool"), l.Cluster.PutText("bench", pool("BGP"))); err != nil {
		return nil, err
	}
	ctx, b.stop = context.WithCancel(ctx)
	if b.seen, err = measure.WatchAddresses(ctx, b.api.core, namespace); err != nil {
		return nil, err
	}
	if err := l.StartSpeakers(ctx, fanfareNode); err != nil {
		return nil, err
	}
	b.findProcesses()
	return b, nil
}

func (b *bench) close() { b.stop() }

// A result holds the measurements with one number of Services.
type result struct {
	Services   int
	Fill       fill
	Created    created
	BIRD       created    // the same with BIRD instead of FRR
	Aggregated aggregated // the same with FRR, which has an aggregate already
	Eager      moved      // kube-proxy with minSyncPeriod 0s
	Default    moved      // and with its default
	Busy       busy
	Idle       []measure.Share
	Usage      []measure.Usage
}

// measure fills the cluster up to n Services and measures with them.
func (b *bench) measure(ctx context.Context, n int, o options) (r result, err error) {
	repeats := o.repeats
	r.Services = n
	if err := b.startProxy(ctx, shortInterval); err != nil {
		return r, err
	}
	b.log.Info("filling", "services", n)
	if r.Fill, err = b.fill(ctx, n); err != nil {
		return r, fmt.Errorf("fill: %w", err)
	}
	b.log.Info("filled", "took", r.Fill.Kernel)
	if r.Idle, err = b.idle(ctx, o.idle); err != nil {
		return r, err
	}
	if r.Created, err = b.create(ctx, repeats); err != nil {
		return r, fmt.Errorf("a Service is created: %w", err)
	}
	b.log.Info("created", "sample", fmt.Sprintf("%+v", r.Created))
	if r.BIRD, err = b.createWithBIRD(ctx, repeats); err != nil {
		return r, fmt.Errorf("a Service is created, with BIRD: %w", err)
	}
	b.log.Info("created with BIRD", "sample", fmt.Sprintf("%+v", r.BIRD))
	if r.Aggregated, err = b.createAggregated(ctx, repeats); err != nil {
		return r, fmt.Errorf("a Service is created, in an aggregate: %w", err)
	}
	b.log.Info("created in an aggregate", "sample", fmt.Sprintf("%+v", r.Aggregated))
	if r.Eager, err = b.move(ctx, repeats); err != nil {
		return r, fmt.Errorf("an endpoint changes: %w", err)
	}
	b.log.Info("moved", "sample", fmt.Sprintf("%+v", r.Eager))
	if r.Usage, err = b.usage(); err != nil {
		return r, err
	}
	if err := b.startProxy(ctx, defaultInterval); err != nil {
		return r, err
	}
	if r.Default, err = b.move(ctx, repeats); err != nil {
		return r, fmt.Errorf("an endpoint changes: %w", err)
	}
	b.log.Info("moved", "sample", fmt.Sprintf("%+v", r.Default))
	if r.Busy, err = b.createBusy(ctx, repeats); err != nil {
		return r, fmt.Errorf("a Service is created, on busy nodes: %w", err)
	}
	b.log.Info("created on busy nodes", "sample", fmt.Sprintf("%+v", r.Busy))
	return r, nil
}

func (b *bench) idle(ctx context.Context, span time.Duration) ([]measure.Share, error) {
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := measure.Pause(ctx, span); err != nil {
		return nil, err
	}
	after, err := b.usage()
	return measure.Shares(before, after, time.Since(began)), err
}

// usage reads the usage of every measured process.
func (b *bench) usage() ([]measure.Usage, error) {
	var all []measure.Usage
	var errs []error
	for _, p := range b.pids {
		u, err := measure.UsageOf(p.name, p.pid())
		all, errs = append(all, u), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// recordedPID returns a function that reads the ID of a process from the lab's record; 0 if
// there is none.
func (b *bench) recordedPID(name string) func() int {
	return func() (pid int) {
		text, err := os.ReadFile(filepath.Join(b.Dir(), "pids", name))
		if err == nil {
			_, err = fmt.Sscan(string(text), &pid)
		}
		if err != nil {
			b.log.Error("no record", "of", name, "err", err)
		}
		return pid
	}
}

// Names of processes that the figures use.
const (
	speakerName = "fanfare speaker"
	proxyName   = "kube-proxy"
)

// controllerName names one of the controllers. One leads, the other is on standby.
func controllerName(n int) string { return fmt.Sprintf("fanfare controller %d", n) }

// findProcesses lists the measured processes.
func (b *bench) findProcesses() {
	b.pids = append(b.pids, measured{speakerName, b.recordedPID("speaker-" + fanfareNode)},
		measured{"FRR zebra", b.recordedPID("zebra")}, measured{"FRR bgpd", b.recordedPID("bgpd")})
	for i, c := range b.Controllers {
		b.pids = append(b.pids, measured{controllerName(i + 1), c.PID})
	}
	b.pids = append(b.pids,
		measured{proxyName, func() int { return b.proxy.PID() }},
		measured{"kube-apiserver", b.Kubernetes.APIServer.PID},
		measured{"etcd", b.Kubernetes.Etcd.PID},
		measured{"kube-controller-manager", b.Kubernetes.ControllerManager.PID},
		measured{"this program, with client and pods", os.Getpid},
	)
}

// kube-proxy's configurations: its minimum time between two changes of its rules.
const (
	shortInterval   = "minSyncPeriod: 1ms"
	defaultInterval = "" // the default, which is 1s
)

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
clusterCIDR: "10.244.0.0/16,2001:db8:244::/48"
hostnameOverride: %s
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0}
nftables: {%s}
`

// startProxy starts kube-proxy, replacing a running one, and returns when it has written
// its rules.
func (b *bench) startProxy(ctx context.Context, sync string) error {
	if b.proxy != nil {
		if err := b.proxy.Stop(syscall.SIGKILL, 10*time.Second); err != nil {
			return err
		}
	}
	kubeconfig, config := filepath.Join(b.Dir(), "bench-proxy.kubeconfig"), filepath.Join(b.Dir(), "bench-proxy.yaml")
	err := errors.Join(
		b.Kubernetes.WriteKubeconfig(kubeconfig, "system:kube-proxy"),
		os.WriteFile(config, fmt.Appendf(nil, proxyConfig, kubeconfig, proxyNode, sync), 0o600),
	)
	if err != nil {
		return err
	}
	if b.proxy, err = b.Start(proxyNode, "kube-proxy-"+proxyNode, b.tools, "kube-proxy", "--config",
		config); err != nil {
		return err
	}
	return lab.Await(ctx, 10*time.Minute, "kube-proxy", func() error {
		if !b.proxy.Alive() {
			return errors.New("it ended")
		}
		if s, err := b.proxySynced(ctx, proxyNode); err != nil || !s {
			return errors.Join(err, errors.New("it has not written its rules"))
		}
		return nil
	})
}

// proxySynced says whether a node's kube-proxy has written all changes that it has received.
func (b *bench) proxySynced(ctx context.Context, node string) (bool, error) {
	m, err := measure.Scrape(ctx, func(ctx context.Context) (net.Conn, error) {
		return b.dial(ctx, node, "127.0.0.1:10249")
	})
	if err != nil {
		return false, err
	}
	written := m["kubeproxy_sync_proxy_rules_last_timestamp_seconds"]
	pending := m["kubeproxy_sync_proxy_rules_endpoint_changes_pending"] +
		m["kubeproxy_sync_proxy_rules_service_changes_pending"]
	return written > 0 && pending == 0, nil
}

// forwarded returns how many addresses Fanfare's node forwards.
func (b *bench) forwarded(ctx context.Context) (int, error) {
	m, err := measure.Scrape(ctx, func(ctx context.Context) (net.Conn, error) {
		return dialUnix(ctx, b.Speaker(fanfareNode).RunDir)
	})
	return int(m["fanfare_proxy_vips"]), err
}
