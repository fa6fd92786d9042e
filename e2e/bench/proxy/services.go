package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

const (
	namespace = "shop"
	// maxServices and maxEndpoints are limited by the pods' network.
	maxServices, maxEndpoints = 50_000, 40
	servicePort               = 80
)

// cluster holds all objects but Services: two nodes (home has all pods), a pool, and an
// unreachable router, because a speaker without a router does nothing.
const cluster = `
apiVersion: v1
kind: Namespace
metadata: {name: ` + namespace + `}
---
apiVersion: v1
kind: Node
metadata: {name: ` + home + `}
status: {addresses: [{type: InternalIP, address: 172.30.0.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: ` + away + `}
status: {addresses: [{type: InternalIP, address: 172.30.0.2}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: bench}
spec: {announce: BGP, addresses: [198.18.0.0/15]}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: unreachable}
spec: {peerAddress: 127.0.0.9, peerASN: 65000, myASN: 65001}
`

const (
	home = "n1" // the node of all pods
	away = "n2" // a node that reaches them over the network
)

// vip returns the address of the n-th Service.
func vip(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 + byte(n>>16), byte(n >> 8), byte(n)})
}

// pod returns the address of the i-th endpoint of the n-th Service, with so many endpoints
// per Service.
func pod(n, i, endpoints int) netip.Addr {
	p := n*endpoints + i
	return netip.AddrFrom4([4]byte{10, 128 + byte(p>>16), byte(p >> 8), byte(p)})
}

// newPod returns an unused pod address whose bytes appear nowhere else in the kernel's
// messages.
func newPod(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 173 + byte(n>>16), 0xc7 ^ byte(n>>8), 0xa9 ^ byte(n)})
}

func serviceName(n int) string { return fmt.Sprintf("web-%05d", n) }

// protocols returns the protocols of the n-th Service: TCP if n is even, UDP if it is odd,
// both for the first.
func protocols(n int) []corev1.Protocol {
	switch {
	case n == 0:
		return []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
	case n%2 == 0:
		return []corev1.Protocol{corev1.ProtocolTCP}
	default:
		return []corev1.Protocol{corev1.ProtocolUDP}
	}
}

func newService(n int) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(n)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			// A cluster has only 2,768 node ports, and the Service needs none.
			AllocateLoadBalancerNodePorts: new(bool),
		},
	}
	for _, p := range protocols(n) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: portName(p), Protocol: p, Port: servicePort})
	}
	return s
}

func portName(p corev1.Protocol) string {
	if p == corev1.ProtocolUDP {
		return "udp"
	}
	return "tcp"
}

func newSlice(n int, pods []netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: serviceName(n) + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(n)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range protocols(n) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(portName(p)), Protocol: &p, Port: new(int32(podPort))})
	}
	for _, a := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.String()}, NodeName: new(home),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		})
	}
	return s
}

func podsOf(n, endpoints int) (pods []netip.Addr) {
	for i := range endpoints {
		pods = append(pods, pod(n, i, endpoints))
	}
	return pods
}

// An api writes Services and EndpointSlices in protobuf, because there are many.
type api struct {
	core, discovery *rest.RESTClient

	mu         sync.Mutex
	clusterIPs map[int]netip.Addr // by Service
}

func newAPI(cfg *rest.Config) (*api, error) {
	core, discovery, err := measure.Clients(cfg)
	return &api{core: core, discovery: discovery, clusterIPs: map[int]netip.Addr{}}, err
}

// creators is the number of concurrent requests.
const creators = 8

// fill creates the Services from first to before end, each with its endpoints and its
// address; no controller runs.
func (a *api) fill(ctx context.Context, first, end, endpoints int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(creators)
	for n := first; n < end; n++ {
		g.Go(func() error { return a.create(ctx, n, endpoints) })
	}
	return g.Wait()
}

func (a *api) create(ctx context.Context, n, endpoints int) error {
	slice := newSlice(n, podsOf(n, endpoints))
	if err := a.discovery.Post().Namespace(namespace).Resource("endpointslices").Body(slice).Do(ctx).Error(); err != nil {
		return err
	}
	s := &corev1.Service{}
	if err := a.core.Post().Namespace(namespace).Resource("services").Body(newService(n)).Do(ctx).Into(s); err != nil {
		return err
	}
	addr, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		return fmt.Errorf("clusterIP of %s: %w", s.Name, err)
	}
	a.mu.Lock()
	a.clusterIPs[n] = addr
	a.mu.Unlock()
	if err := a.claim(ctx, s, n); err != nil {
		return err
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip(n).String()}}
	return a.core.Put().Namespace(namespace).Resource("services").Name(s.Name).SubResource("status").Body(s).Do(ctx).Error()
}

// claim claims a Service's address, as the controller does.
func (a *api) claim(ctx context.Context, s *corev1.Service, n int) error {
	addr := vip(n)
	c := v1alpha1.AddressClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ClaimName(addr)},
		Spec: v1alpha1.AddressClaimSpec{
			Address: addr.String(), Pool: "bench",
			Holders: []v1alpha1.ClaimHolder{{Namespace: s.Namespace, Name: s.Name, UID: string(s.UID)}},
		},
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	// Custom resources have no protobuf encoding.
	return a.core.Post().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "addressclaims").
		SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept", runtime.ContentTypeJSON).Body(text).Do(ctx).Error()
}

// move replaces a Service's endpoints without a check of the version.
func (a *api) move(ctx context.Context, n int, pods []netip.Addr) error {
	s := newSlice(n, pods)
	return a.discovery.Put().Namespace(namespace).Resource("endpointslices").Name(s.Name).Body(s).Do(ctx).Error()
}

// A destinations value holds the destinations of a number of Services by protocol.
type destinations struct{ tcp, udp []netip.AddrPort }

// each collects what addrs returns for every Service, for the Service's protocols.
func each(services int, port uint16, addrs func(n int) []netip.Addr) (d destinations) {
	for n := range services {
		for _, p := range protocols(n) {
			to := &d.tcp
			if p == corev1.ProtocolUDP {
				to = &d.udp
			}
			for _, a := range addrs(n) {
				*to = append(*to, netip.AddrPortFrom(a, port))
			}
		}
	}
	return d
}
