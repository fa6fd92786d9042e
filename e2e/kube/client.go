package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// A Client applies objects in YAML, as kubectl does.
type Client struct {
	discovery *discovery.DiscoveryClient
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	dynamic   *dynamic.DynamicClient
	config    *rest.Config
}

// NewClient returns a client for cfg.
func NewClient(cfg *rest.Config) (*Client, error) {
	// The library's default of 32 s is too short where an API server gets only the time that other
	// programs leave, as in the tests of the benchmarks.
	patient := rest.CopyConfig(cfg)
	patient.Timeout = cmp.Or(cfg.Timeout, readyLimit)
	disco, err := discovery.NewDiscoveryClientForConfig(patient)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{disco, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco)), dyn, cfg}, nil
}

// Host returns the URL of the API server.
func (c *Client) Host() string { return c.config.Host }

func (c *Client) ready(ctx context.Context) error {
	_, err := c.discovery.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// Version returns the API server's version, such as v1.32.0.
func (c *Client) Version() (string, error) {
	info, err := c.discovery.ServerVersion()
	if err != nil {
		return "", err
	}
	return info.GitVersion, nil
}

// Apply creates or changes the objects of YAML documents, as kubectl apply --server-side
// does. It also writes a status, which otherwise only controllers do.
func (c *Client) Apply(ctx context.Context, text string) error {
	objects, err := decode(text)
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range objects {
		if err := c.apply(ctx, o); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

func (c *Client) apply(ctx context.Context, o *unstructured.Unstructured) error {
	r, err := c.resource(o)
	if err != nil {
		return err
	}
	force := metav1.ApplyOptions{FieldManager: "e2e", Force: true}
	status, has := o.Object["status"]
	delete(o.Object, "status")
	if _, err := r.Apply(ctx, o.GetName(), o, force); err != nil || !has {
		return err
	}
	// Apply would merge a Node's two addresses of one type (listType=map by type).
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = r.Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "e2e-status"},
		"status")
	return err
}

// Create creates the objects of YAML documents, and fails for existing ones.
func (c *Client) Create(ctx context.Context, text string) error {
	objects, err := decode(text)
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range objects {
		r, err := c.resource(o)
		if err == nil {
			_, err = r.Create(ctx, o, metav1.CreateOptions{FieldManager: "e2e"})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// ApplyFiles applies files, or the files of folders.
func (c *Client) ApplyFiles(ctx context.Context, paths ...string) error {
	var errs []error
	for _, path := range paths {
		files, err := filepath.Glob(filepath.Join(path, "*.yaml"))
		if len(files) == 0 {
			files = []string{path}
		}
		errs = append(errs, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil {
				err = c.Apply(ctx, string(text))
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", file, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Delete deletes the objects of YAML documents, of which only kind and name matter. A
// missing object is no error.
func (c *Client) Delete(ctx context.Context, text string) error {
	objects, err := decode(text)
	if err != nil {
		return err
	}
	slices.Reverse(objects) // Namespaces are created first and deleted last.
	var errs []error
	for _, o := range objects {
		errs = append(errs, c.delete(ctx, o))
	}
	return errors.Join(errs...)
}

func (c *Client) delete(ctx context.Context, o *unstructured.Unstructured) error {
	r, err := c.resource(o)
	if err == nil {
		// The grace period is zero because no kubelet runs the pods.
		err = r.Delete(ctx, o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// Terminate requests a pod to stop, as kubectl delete does. The pod stays, with a deletion
// timestamp, until its kubelet or Delete ends it.
func (c *Client) Terminate(ctx context.Context, namespace, pod string) error {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
	o.SetNamespace(namespace)
	r, err := c.resource(o)
	if err != nil {
		return err
	}
	return r.Delete(ctx, pod, metav1.DeleteOptions{})
}

// Patch merges a JSON patch into an object or a subresource.
func (c *Client) Patch(ctx context.Context, gvk schema.GroupVersionKind, namespace, name, patch string,
	subresource ...string) error {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(gvk)
	o.SetNamespace(namespace)
	r, err := c.resource(o)
	if err != nil {
		return err
	}
	_, err = r.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "e2e"},
		subresource...)
	return err
}

// List returns all objects of a kind in all namespaces.
func (c *Client) List(ctx context.Context, gvk schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	m, err := c.mapping(gvk)
	if err != nil {
		return nil, err
	}
	list, err := c.dynamic.Resource(m.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", m.Resource.Resource, err)
	}
	return list.Items, nil
}

// Watch reports the changes of one object, and first the object itself if it exists.
func (c *Client) Watch(ctx context.Context, gvk schema.GroupVersionKind, namespace,
	name string) (watch.Interface, error) {
	m, err := c.mapping(gvk)
	if err != nil {
		return nil, err
	}
	w, err := c.dynamic.Resource(m.Resource).Namespace(namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s %s/%s: %w", m.Resource.Resource, namespace, name, err)
	}
	return w, nil
}

func (c *Client) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	m, err := c.mapping(o.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	r := c.dynamic.Resource(m.Resource)
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return r, nil
	}
	if o.GetNamespace() == "" {
		return r.Namespace(metav1.NamespaceDefault), nil
	}
	return r.Namespace(o.GetNamespace()), nil
}

// mapping returns the resource of a kind. For an unknown kind, such as that of a new CRD,
// it asks the API server again.
func (c *Client) mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset()
		m, err = c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	return m, err
}

func decode(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	for {
		o := &unstructured.Unstructured{}
		switch err := d.Decode(&o.Object); {
		case err == io.EOF:
			return objects, nil
		case err != nil:
			return nil, err
		}
		if len(o.Object) != 0 {
			objects = append(objects, o)
		}
	}
}
