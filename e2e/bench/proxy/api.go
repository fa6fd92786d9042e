package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
)

// An api writes the objects of Services.
type api struct {
	control                     *kube.Cluster
	core, discovery, networking *rest.RESTClient

	models     map[int]objects    // that the API server has created, by Service
	clusterIPs map[int]netip.Addr // by Service
}

func newAPI(control *kube.Cluster) (*api, error) {
	cfg, err := control.Config("bench", "system:masters")
	if err != nil {
		return nil, err
	}
	a := &api{control: control, models: map[int]objects{}, clusterIPs: map[int]netip.Addr{}}
	if a.core, a.discovery, err = measure.Clients(cfg); err != nil {
		return nil, err
	}
	a.networking, err = measure.Client(cfg, networkingv1.SchemeGroupVersion, networkingv1.AddToScheme)
	return a, err
}

// objects are those of one Service, as the API server returns them.
type objects struct {
	service   *corev1.Service
	slice     *discoveryv1.EndpointSlice
	claim     *v1alpha1.AddressClaim
	clusterIP *networkingv1.IPAddress
}

// modelCount is how many Services the API server creates: the first has two protocols, and the others have one of them
// each, in turn, as all later ones.
const modelCount = 3

// fill adds the Services from first to before end, each with its endpoints and its address; no controller runs. The
// API server creates the first ones of all, and etcd gets copies of them for the rest: for each new ClusterIP,
// kube-apiserver lists all IPAddresses twice (Allocator.createIPAddress of its package ipallocator), so that 50,000
// would take an hour.
func (a *api) fill(ctx context.Context, first, end, endpoints int) error {
	for n := first; n < min(end, modelCount); n++ {
		if err := a.create(ctx, n, endpoints); err != nil {
			return fmt.Errorf("%s: %w", serviceName(n), err)
		}
	}
	if end <= max(first, modelCount) {
		return nil
	}
	var copies []kube.Stored
	next := netip.AddrFrom4([4]byte{10, 96, 1, 0})
	created := slices.Collect(maps.Values(a.clusterIPs))
	for n := max(first, modelCount); n < end; n++ {
		for slices.Contains(created, next) {
			next = next.Next()
		}
		a.clusterIPs[n] = next
		model := a.models[2-n%2] // has the same protocol
		stored, err := model.as(n, endpoints, next).stored()
		if err != nil {
			return fmt.Errorf("%s: %w", serviceName(n), err)
		}
		copies, next = append(copies, stored...), next.Next()
	}
	if err := a.control.Store(ctx, copies); err != nil {
		return err
	}
	return a.awaitCaches(ctx)
}

// create creates a Service by the API server.
func (a *api) create(ctx context.Context, n, endpoints int) error {
	o := objects{slice: newSlice(n, podsOf(n, endpoints)), service: newService(n), clusterIP: &networkingv1.IPAddress{}}
	if err := a.discovery.Post().Namespace(namespace).Resource("endpointslices").Body(o.slice).Do(ctx).Into(
		o.slice); err != nil {
		return err
	}
	if err := a.core.Post().Namespace(namespace).Resource("services").Body(o.service).Do(ctx).Into(o.service); err !=
		nil {
		return err
	}
	addr, err := netip.ParseAddr(o.service.Spec.ClusterIP)
	if err != nil {
		return fmt.Errorf("clusterIP: %w", err)
	}
	a.clusterIPs[n] = addr
	if err := a.networking.Get().Resource("ipaddresses").Name(addr.String()).Do(ctx).Into(o.clusterIP); err != nil {
		return err
	}
	if o.claim, err = a.claim(ctx, o.service, n); err != nil {
		return err
	}
	o.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip(n).String()}}
	a.models[n] = o
	return a.core.Put().Namespace(namespace).Resource("services").Name(o.service.Name).SubResource("status").Body(
		o.service).Do(ctx).Into(o.service)
}

// claim claims a Service's address, as the controller does.
func (a *api) claim(ctx context.Context, s *corev1.Service, n int) (*v1alpha1.AddressClaim, error) {
	c := v1alpha1.AddressClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ClaimName(vip(n))},
		Spec:       v1alpha1.AddressClaimSpec{Address: vip(n).String(), Pool: "bench", Holders: holders(s)},
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	// Custom resources have no protobuf encoding.
	text, err = a.core.Post().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version,
		"addressclaims").
		SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept",
		runtime.ContentTypeJSON).Body(text).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	return &c, json.Unmarshal(text, &c)
}

func holders(s *corev1.Service) []v1alpha1.ClaimHolder {
	return []v1alpha1.ClaimHolder{{Namespace: s.Namespace, Name: s.Name, UID: string(s.UID)}}
}

// as returns copies that are those of the n-th Service. They share what is equal.
func (o objects) as(n, endpoints int, clusterIP netip.Addr) objects {
	service, slice, claim, ip := *o.service, *o.slice, *o.claim, *o.clusterIP
	service.ObjectMeta = renamed(service.ObjectMeta, serviceName(n))
	service.Spec.ClusterIP, service.Spec.ClusterIPs = clusterIP.String(), []string{clusterIP.String()}
	ingress := service.Status.LoadBalancer.Ingress[0]
	ingress.IP = vip(n).String()
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{ingress}

	fresh := newSlice(n, podsOf(n, endpoints))
	slice.ObjectMeta = renamed(slice.ObjectMeta, fresh.Name)
	slice.Labels, slice.Endpoints = fresh.Labels, fresh.Endpoints

	claim.ObjectMeta = renamed(claim.ObjectMeta, v1alpha1.ClaimName(vip(n)))
	claim.Spec.Address, claim.Spec.Holders = vip(n).String(), holders(&service)

	ip.ObjectMeta = renamed(ip.ObjectMeta, clusterIP.String())
	ref := *ip.Spec.ParentRef
	ref.Name = service.Name
	ip.Spec.ParentRef = &ref
	return objects{service: &service, slice: &slice, claim: &claim, clusterIP: &ip}
}

// renamed returns the metadata of another object. etcd adds the version.
func renamed(m metav1.ObjectMeta, name string) metav1.ObjectMeta {
	m.Name, m.UID, m.ResourceVersion = name, uuid.NewUUID(), ""
	return m
}

// stored returns the objects as kube-apiserver writes them: its own kinds in protobuf.
func (o objects) stored() ([]kube.Stored, error) {
	o.clusterIP.SetGroupVersionKind(networkingv1.SchemeGroupVersion.WithKind("IPAddress"))
	o.slice.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	o.service.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	claim, err := json.Marshal(o.claim)
	all := []kube.Stored{{Key: "/registry/" + v1alpha1.GroupVersion.Group + "/addressclaims/" + o.claim.Name,
		Value: claim}}
	for _, own := range []struct {
		key    string
		object runtime.Object
	}{
		{"ipaddresses/" + o.clusterIP.Name, o.clusterIP},
		{"endpointslices/" + namespace + "/" + o.slice.Name, o.slice},
		{"services/specs/" + namespace + "/" + o.service.Name, o.service},
	} {
		var value bytes.Buffer
		err = errors.Join(err, protobuf.NewSerializer(nil, nil).Encode(own.object, &value))
		all = append(all, kube.Stored{Key: "/registry/" + own.key, Value: value.Bytes()})
	}
	return all, err
}

// cacheLimit is ten times what kube-apiserver needs on two cores to read the objects of 50,000 Services.
const cacheLimit = 5 * time.Minute

// awaitCaches waits until the API server has read all objects from etcd, so that no program needs to wait for that:
// only then it sends the first event of a watch.
func (a *api) awaitCaches(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cacheLimit, errors.New("the API server reads etcd for too long"))
	defer cancel()
	for _, r := range []*rest.Request{
		a.core.Get().Resource("services"), a.discovery.Get().Resource("endpointslices"),
		a.core.Get().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version,
			"addressclaims").SetHeader("Accept", runtime.ContentTypeJSON),
	} {
		events, err := r.Param("watch", "true").Param("resourceVersion", "0").Stream(ctx)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		_, err = io.ReadFull(events, make([]byte, 1))
		if err = errors.Join(err, events.Close()); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return nil
}

// move replaces a Service's endpoints without a check of the version.
func (a *api) move(ctx context.Context, n int, pods []netip.Addr) error {
	s := newSlice(n, pods)
	return a.discovery.Put().Namespace(namespace).Resource("endpointslices").Name(s.Name).Body(s).Do(ctx).Error()
}
