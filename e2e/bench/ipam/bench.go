package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
)

const (
	namespace = "shop"
	// creators is the number of clients that create Services concurrently.
	creators = 8
	// fillLimit bounds the creation and assignment of all Services, eventLimit that of one.
	fillLimit, eventLimit = 30 * time.Minute, 10 * time.Minute
	// waitPool is a pool of one address that Services wait for.
	waitPool = "wait"
)

const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: ` + namespace + `}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: bench}
spec: {announce: BGP, addresses: [198.18.0.0/16]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: ` + waitPool + `}
spec: {announce: BGP, addresses: [198.19.0.1/32], allocation: OnRequest}
`

// A bench is a control plane with or without a running controller.
type bench struct {
	options
	cluster    *kube.Cluster
	core       *rest.RESTClient
	seen       *measure.Addresses
	dir        string
	controller *exec.Cmd // nil if none runs
}

func measureAll(ctx context.Context, o options) (r report, err error) {
	r = report{Began: time.Now(), Services: o.services, Restarts: o.restarts, Changes: o.changes}
	b, err := newBench(ctx, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	tools, err := kube.Tools(ctx, false)
	if err != nil {
		return r, err
	}
	if r.Machine, err = measure.Describe(ctx, b.Binary, measure.Kubernetes(tools, "kube-apiserver")); err != nil {
		return r, err
	}
	for _, step := range []func(context.Context, *report) error{b.fill, b.startController, b.restart, b.createOneByOne,
		b.reassign} {
		if err := step(ctx, &r); err != nil {
			return r, err
		}
	}
	r.Took = time.Since(r.Began)
	return r, nil
}

func newBench(ctx context.Context, o options) (b *bench, err error) {
	tools, err := kube.Tools(ctx, true)
	if err != nil {
		return nil, err
	}
	b = &bench{options: o}
	if b.dir, err = os.MkdirTemp("", "fanfare-benchipam-"); err != nil {
		return nil, err
	}
	b.cluster, err = kube.StartIn(ctx, nil, tools, b.dir, netip.MustParseAddr("127.0.0.1"))
	if err == nil {
		err = b.install(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// install applies Fanfare's objects to the control plane and starts the watch.
func (b *bench) install(ctx context.Context) error {
	if err := b.cluster.Install(ctx, filepath.Join(b.Source, "manifests")); err != nil {
		return err
	}
	if err := b.cluster.Admin().Apply(ctx, objects); err != nil {
		return err
	}
	if err := b.cluster.WriteKubeconfig(b.kubeconfig(), "system:serviceaccount:fanfare-system:controller"); err != nil {
		return err
	}
	cfg, err := b.cluster.Config("bench", "system:masters")
	if err != nil {
		return err
	}
	cfg.QPS = -1 // the API server limits the rate
	if b.core, _, err = measure.Clients(cfg); err != nil {
		return err
	}
	b.seen, err = measure.WatchAddresses(ctx, b.core, namespace)
	return err
}

func (b *bench) kubeconfig() string { return filepath.Join(b.dir, "controller.kubeconfig") }

func (b *bench) close() error {
	b.kill()
	if b.cluster == nil {
		return os.RemoveAll(b.dir)
	}
	return b.cluster.Stop()
}

func (b *bench) start() error {
	log, err := os.OpenFile(filepath.Join(b.dir, "controller.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	c := exec.Command(b.Binary, "controller", "--kubeconfig", b.kubeconfig())
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	b.controller = c
	return nil
}

// kill ends the controller as a crash does.
func (b *bench) kill() {
	if b.controller == nil {
		return
	}
	_ = b.controller.Process.Kill()
	_ = b.controller.Wait() // it was killed
	b.controller = nil
}

// create creates a Service, with a requested pool if one is given.
func (b *bench) create(ctx context.Context, name, pool string) error {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			// A cluster has only 2,768 node ports, and the Service needs none.
			AllocateLoadBalancerNodePorts: new(bool),
			Ports:                         []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	if pool != "" {
		s.Annotations = map[string]string{"fanfare.io/address-pool": pool}
	}
	if err := b.core.Post().Namespace(namespace).Resource("services").Body(s).Do(ctx).Error(); err != nil {
		return fmt.Errorf("service %s: %w", name, err)
	}
	return nil
}

func (b *bench) delete(ctx context.Context, name string) error {
	return b.core.Delete().Namespace(namespace).Resource("services").Name(name).Do(ctx).Error()
}

// address returns when a Service was seen with an address.
func (b *bench) address(ctx context.Context, name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	is, err := b.seen.Of(ctx, name)
	return is.At, err
}

func serviceName(i int) string { return fmt.Sprintf("s%05d", i) }

// fill creates the Services while the controller does not run.
func (b *bench) fill(ctx context.Context, r *report) error {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, fillLimit)
	defer cancel()
	g, limited := errgroup.WithContext(limited)
	g.SetLimit(creators)
	for i := range b.services {
		g.Go(func() error { return b.create(limited, serviceName(i), "") })
	}
	err := g.Wait()
	r.Created = time.Since(began)
	return err
}

// startController starts the controller for the first time and measures the assignments.
func (b *bench) startController(ctx context.Context, r *report) error {
	ctx, cancel := context.WithTimeout(ctx, fillLimit)
	defer cancel()
	began := time.Now()
	if err := b.start(); err != nil {
		return err
	}
	var first, last time.Time
	for i := range b.services {
		is, err := b.seen.Of(ctx, serviceName(i))
		if err != nil {
			return err
		}
		if first.IsZero() || is.At.Before(first) {
			first = is.At
		}
		if is.At.After(last) {
			last = is.At
		}
	}
	r.First, r.Last = first.Sub(began), last.Sub(began)
	var err error
	r.Usage, err = measure.UsageOf("controller", b.controller.Process.Pid)
	return err
}

// restart restarts the controller with all existing assignments and one new Service.
func (b *bench) restart(ctx context.Context, r *report) error {
	for i := range b.restarts {
		b.kill()
		name := fmt.Sprintf("restart%d", i)
		if err := b.create(ctx, name, ""); err != nil {
			return err
		}
		began := time.Now()
		if err := b.start(); err != nil {
			return err
		}
		at, err := b.address(ctx, name)
		if err != nil {
			return err
		}
		r.Again = append(r.Again, at.Sub(began))
	}
	return nil
}

// createOneByOne creates one Service after the other.
func (b *bench) createOneByOne(ctx context.Context, r *report) error {
	for i := range b.changes {
		name := fmt.Sprintf("new%d", i)
		began := time.Now()
		if err := b.create(ctx, name, ""); err != nil {
			return err
		}
		at, err := b.address(ctx, name)
		if err != nil {
			return err
		}
		r.New = append(r.New, at.Sub(began))
	}
	return nil
}

// reassign deletes one Service after the other while the next one waits for the address.
func (b *bench) reassign(ctx context.Context, r *report) error {
	name := func(i int) string { return fmt.Sprintf("wait%d", i) }
	if err := b.create(ctx, name(0), waitPool); err != nil {
		return err
	}
	if _, err := b.address(ctx, name(0)); err != nil {
		return err
	}
	for i := range b.changes {
		if err := b.create(ctx, name(i+1), waitPool); err != nil {
			return err
		}
		if err := b.awaitRefused(ctx, name(i+1)); err != nil {
			return err
		}
		began := time.Now()
		if err := b.delete(ctx, name(i)); err != nil {
			return err
		}
		at, err := b.address(ctx, name(i+1))
		if err != nil {
			return err
		}
		r.Freed = append(r.Freed, at.Sub(began))
	}
	return nil
}

// awaitRefused waits until a Service's condition says why it has no address.
func (b *bench) awaitRefused(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s := &corev1.Service{}
		if err := b.core.Get().Namespace(namespace).Resource("services").Name(name).Do(ctx).Into(s); err != nil {
			return err
		}
		if len(s.Status.Conditions) > 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("service %s has no reason for having no address: %w", name, ctx.Err())
		}
	}
}
