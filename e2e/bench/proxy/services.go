package proxy

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: new(portName(p)), Protocol: &p, Port: new(int32(podPort)),
		})
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
