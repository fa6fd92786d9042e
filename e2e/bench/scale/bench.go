package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
)

// A kind of client.
type kind string

const (
	none     kind = "none" // what the changes themselves and the controller cost
	speakers kind = "speakers"
	proxies  kind = "kube-proxies"
)

// A bench is a control plane with the controller, nodes, Services and endpoints.
type bench struct {
	options
	size
	dir             string
	cluster         *kube.Cluster
	controller      *exec.Cmd
	core, discovery *rest.RESTClient
	stop            context.CancelFunc // of the kubelets and the informer
	proxyConfig     *rest.Config       // of kube-proxy's account
	addresses       addresses          // by an informer: lists would be a load of their own
	traffic         *traffic           // of the clients
	fleet           *fleet
	created         int // Services so far
}

// The garbage collector of the hollow clients takes memory rather than time: their cores are the API server's too.
const (
	collectAt   = 400      // percent of the heap in use
	memoryLimit = 10 << 30 // bytes
)

// threads is how many goroutines run at once, on however few cores. Goroutines that decode objects take turns of 10 ms,
// and those of gossip would wait for all of them. The kernel prefers threads that have slept, as it does those of other
// processes on a real node.
const threads = 32

func measureAll(ctx context.Context, o options) (r report, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	defer debug.SetGCPercent(debug.SetGCPercent(collectAt))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit))
	r = o.newReport()
	tools, err := kube.Tools(ctx, true)
	if err != nil {
		return r, err
	}
	if r.Machine, err = measure.Describe(ctx, o.Binary, measure.Kubernetes(tools, "kube-apiserver")); err != nil {
		return r, err
	}
	for _, s := range o.sizes {
		for _, k := range []kind{none, proxies, speakers} {
			r.Runs = append(r.Runs, run{Size: s, Kind: k})
		}
	}
	for i := range r.Runs {
		one := &r.Runs[len(r.Runs)-1-i] // The largest speakers first: they need most of the machine.
		if one.Phases, err = measureOne(ctx, o, tools, one.Size, one.Kind); err != nil {
			return r, fmt.Errorf("%d nodes, %s: %w", one.Size.Nodes, one.Kind, err)
		}
	}
	r.Took = time.Since(r.Began)
	return r, nil
}

// measureOne measures one kind of client with a control plane of its own.
func measureOne(ctx context.Context, o options, tools string, s size, k kind) (phases []phase, err error) {
	b := &bench{options: o, size: s, traffic: newTraffic(), stop: func() {}}
	if b.dir, err = os.MkdirTemp("", "fanfare-benchscale-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	b.cluster, err = kube.StartIn(ctx, nil, tools, filepath.Join(b.dir, "control-plane"),
		netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		return nil, err
	}
	if err := b.install(ctx); err != nil {
		return nil, err
	}
	b.fleet = &fleet{make: b.maker(k), all: map[int]*running{}}
	return b.measure(ctx, k)
}

// maker returns how to make a client of a node.
func (b *bench) maker(k kind) func(int) client {
	return func(i int) client {
		if k == proxies {
			return &hollowProxy{node: nodeName(i), config: b.proxyConfig, traffic: b.traffic}
		}
		return &hollowSpeaker{
			node: nodeName(i), config: b.cluster.SpeakerConfig(nodeName(i)), traffic: b.traffic, keyFile: b.keyFile(),
			runs: b.fleet.runs,
		}
	}
}

func (b *bench) keyFile() string { return filepath.Join(b.dir, "key") }

// install applies Fanfare's objects, nodes, Services and endpoints, and starts the controller.
func (b *bench) install(ctx context.Context) error {
	if err := b.cluster.Install(ctx, filepath.Join(b.Source, "manifests")); err != nil {
		return err
	}
	if err := b.cluster.Admin().Apply(ctx, objects); err != nil {
		return err
	}
	if err := os.WriteFile(b.keyFile(), []byte("a key that protects nothing\n"), 0o600); err != nil {
		return err
	}
	cfg, err := b.cluster.Config("bench", "system:masters")
	if err != nil {
		return err
	}
	if b.proxyConfig, err = b.cluster.Config("system:kube-proxy"); err != nil {
		return err
	}
	if b.core, b.discovery, err = measure.Clients(cfg); err != nil {
		return err
	}
	if err := b.parallel(b.Nodes, func(i int) error { return b.createNode(ctx, i) }); err != nil {
		return err
	}
	if err := b.startController(); err != nil {
		return err
	}
	life, stop := context.WithCancel(ctx)
	b.stop = stop
	services := informer(b.core, "services", &corev1.Service{}, all)
	if err := b.addresses.of(services); err != nil {
		return err
	}
	go services.RunWithContext(life)
	go b.reportNodes(life)
	if err := b.createServices(ctx, b.Services, rate.Inf); err != nil {
		return err
	}
	return b.awaitAssigned(ctx)
}

// parallel calls f n times, eight at a time.
func (b *bench) parallel(n int, f func(i int) error) error {
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

func (b *bench) startController() error {
	kubeconfig := filepath.Join(b.dir, "controller.kubeconfig")
	if err := b.cluster.WriteKubeconfig(kubeconfig, "system:serviceaccount:fanfare-system:controller"); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(b.dir, "controller.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	b.controller = exec.Command(b.Binary, "controller", "--kubeconfig", kubeconfig)
	b.controller.Stdout, b.controller.Stderr = log, log
	return b.controller.Start()
}

func (b *bench) close() error {
	b.stop()
	var errs []error
	if b.fleet != nil {
		errs = append(errs, b.fleet.stop())
	}
	if b.controller != nil && b.controller.Process != nil {
		_ = b.controller.Process.Kill()
		_ = b.controller.Wait() // it was killed
	}
	if b.cluster != nil {
		errs = append(errs, b.cluster.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}
