package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A Lab is a lab with a control plane on its own node. Speakers read the API server, two
// controllers assign addresses, and kube-proxy runs beside the speakers if the test starts
// it.
type Lab struct {
	*lab.Lab
	Kubernetes  *Cluster
	Controllers []*lab.Process
	Proxies     map[string]*lab.Process // kube-proxy by node
	mu          sync.Mutex              // protects Proxies during concurrent starts
}

// LabOptions describe the Lab to build.
type LabOptions struct {
	ID      string // see lab.Options
	Source  string // path of this repository
	Fanfare string // path of the program
	Tools   string // path of Kubernetes' programs
	L2      bool   // a layer 2 lab, see lab.Options.ForL2
	Members bool   // see lab.Options; a layer 2 lab has them in any case

	// Overlays and RouterConfig are added to the lab's own, see lab.Options. Objects replaces
	// its folder; empty: that of the cluster, or of a layer 2 lab.
	Overlays     []string
	RouterConfig string
	Objects      string
}

// controlPlaneNode is the overlay's node for the control plane.
const controlPlaneNode = "cp"

var controlPlaneAddr = netip.MustParseAddr("172.31.0.1")

// UpLab builds a lab without running speakers, in some five seconds. After an error nothing
// of it is left.
func UpLab(ctx context.Context, o LabOptions) (*Lab, error) {
	l := &Lab{Proxies: map[string]*lab.Process{}}
	e2e := filepath.Join(o.Source, "e2e", "containerlab")
	options := lab.Options{
		ID:       o.ID,
		Topology: filepath.Join(e2e, "fanfare.clab.yml"),
		Overlays: append([]string{filepath.Join(e2e, "overlays", "control-plane.yml")}, o.Overlays...),
		Objects:  cmp.Or(o.Objects, filepath.Join(e2e, "cluster")),
		Binary:   o.Fanfare,
		Slack:    lab.Shared,
		Members:  o.Members,

		RouterConfig: o.RouterConfig,
		Store: func(ctx context.Context, wired *lab.Lab) (lab.Store, error) {
			l.Lab = wired
			return l.open(ctx, o)
		},
	}
	if o.L2 {
		options = options.ForL2(e2e)
	}
	if _, err := lab.Up(ctx, options); err != nil {
		return nil, errors.Join(err, l.stopKubernetes())
	}
	return l, nil
}

// open starts the control plane and the controllers.
func (l *Lab) open(ctx context.Context, o LabOptions) (s *store, err error) {
	l.Kubernetes, err = StartIn(ctx, l.Namespace(controlPlaneNode), o.Tools, filepath.Join(l.Dir(), "kubernetes"),
		controlPlaneAddr)
	if err != nil {
		return nil, err
	}
	if err := l.Kubernetes.Install(ctx, filepath.Join(o.Source, "manifests")); err != nil {
		return nil, err
	}
	if err := l.Kubernetes.Admin().Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"); err != nil {
		return nil, err
	}
	for _, name := range []string{"controller-a", "controller-b"} {
		p, err := l.StartController(name)
		if err != nil {
			return nil, err
		}
		l.Controllers = append(l.Controllers, p)
	}
	for _, node := range lab.NodeNames {
		if err := l.Kubernetes.WriteSpeakerKubeconfig(l.speakerKubeconfig(node), node); err != nil {
			return nil, err
		}
	}
	return &store{client: l.Kubernetes.Admin(), kubeconfig: l.speakerKubeconfig,
		files: map[string][]*unstructured.Unstructured{}}, nil
}

// StartController starts a fanfare controller with the rights of rbac.yaml.
func (l *Lab) StartController(name string) (*lab.Process, error) {
	kubeconfig, err := l.kubeconfig(name, "system:serviceaccount:fanfare-system:controller")
	if err != nil {
		return nil, err
	}
	return l.Start(controlPlaneNode, name, l.Binary, "controller", "--kubeconfig", kubeconfig, "--leader-elect")
}

// kubeconfig writes a kubeconfig for a user.
func (l *Lab) kubeconfig(name, user string) (string, error) {
	path := filepath.Join(l.Dir(), name+".kubeconfig")
	return path, l.Kubernetes.WriteKubeconfig(path, user)
}

func (l *Lab) speakerKubeconfig(node string) string {
	return filepath.Join(l.Dir(), "speaker-"+node+".kubeconfig")
}

// Down stops all processes and removes every trace.
func (l *Lab) Down() error { return errors.Join(l.stopKubernetes(), l.Lab.Down()) }

func (l *Lab) stopKubernetes() error {
	if l.Kubernetes == nil {
		return nil
	}
	return l.Kubernetes.Stop()
}

// Install applies the manifests without the programs, and returns when the API server
// serves Fanfare's kinds.
func (c *Cluster) Install(ctx context.Context, manifests string) error {
	err := c.admin.ApplyFiles(ctx, filepath.Join(manifests, "crds"), filepath.Join(manifests, "namespace.yaml"),
		filepath.Join(manifests, "rbac.yaml"), filepath.Join(manifests, "admission.yaml"))
	if err != nil {
		return err
	}
	return lab.Await(ctx, readyLimit, "our CRDs", func() error {
		for _, kind := range []string{"AddressPool", "BGPPeer", "BGPAdvertisement", "L2Advertisement", "AddressClaim",
			"SpeakerStatus"} {
			if _, err := c.admin.List(ctx, v1alpha1.GroupVersion.WithKind(kind)); err != nil {
				return err
			}
		}
		return nil
	})
}

// A store keeps a lab's objects in the API server. It writes only changed objects, so that
// changing one object is one write.
type store struct {
	client     *Client
	kubeconfig func(node string) string

	mu    sync.Mutex
	files map[string][]*unstructured.Unstructured
}

// storeLimit bounds the writes of one file.
const storeLimit = lab.Settle

func (s *store) SpeakerArgs(node string) []string {
	return []string{"--kubeconfig", s.kubeconfig(node)}
}

func (s *store) PutText(name, text string) error {
	want, err := decode(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	have := s.files[name]
	var now []*unstructured.Unstructured // the objects after the update
	var errs []error
	for _, o := range want {
		if o.GetKind() == "Service" {
			delete(o.Object, "status") // written by the controller
		}
		old := sameObject(have, o)
		if old == nil || !reflect.DeepEqual(old.Object, o.Object) {
			if err := s.client.apply(ctx, o.DeepCopy()); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err))
				o = old
			}
		}
		if o != nil {
			now = append(now, o)
		}
	}
	s.files[name] = now
	for _, o := range have {
		if sameObject(want, o) == nil {
			errs = append(errs, s.client.delete(ctx, o))
		}
	}
	return errors.Join(errs...)
}

// sameObject returns the object of the same kind and name from a list, or nil.
func sameObject(in []*unstructured.Unstructured, o *unstructured.Unstructured) *unstructured.Unstructured {
	for _, x := range in {
		if x.GroupVersionKind() == o.GroupVersionKind() && x.GetNamespace() == o.GetNamespace() &&
			x.GetName() == o.GetName() {
			return x
		}
	}
	return nil
}

func (s *store) Delete(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	have, ok := s.files[name]
	if !ok {
		return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	delete(s.files, name)
	var errs []error
	for _, o := range have {
		errs = append(errs, s.client.delete(ctx, o))
	}
	return errors.Join(errs...)
}
