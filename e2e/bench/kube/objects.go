package kube

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// maxServices is limited by backgroundPods.
const maxServices = 50_000

// prefix contains all addresses of Services, with room for the measured ones.
const prefix = "198.18.0.0/16"

// pool returns the AddressPool; announced is BGP or Advertised.
func pool(announced string) string {
	return `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: bench}
spec: {announce: ` + announced + `, addresses: [` + prefix + `]}
`
}

const (
	port    = 80
	podPort = lab.WebPort
)

func newService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			// A cluster has only 2,768 node ports, and the Service needs none.
			AllocateLoadBalancerNodePorts: new(bool),
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP,
				Port: port}},
		},
	}
}

// A pod is an endpoint.
type pod struct {
	addr netip.Addr
	node string
}

// realPod returns a pod of the lab, which answers.
func realPod(name string) pod {
	return pod{lab.PodAddr(name, corev1.IPv4Protocol), lab.NodeOf(name)}
}

// backgroundPods returns the endpoints of the n-th background Service: two addresses
// without pods, on two nodes. The generation changes the addresses.
func backgroundPods(n, generation int) []pod {
	at := func(second byte) netip.Addr { return netip.AddrFrom4([4]byte{10, second, byte(n >> 8), byte(n)}) }
	return []pod{{at(byte(100 + generation%100)), "n1"}, {at(200), "n2"}}
}

func newSlice(service string, pods ...pod) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP),
			Port: new(int32(podPort))}},
	}
	for i, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{p.addr.String()},
			NodeName:   &p.node,
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d", service, i),
			},
		})
	}
	return s
}

func backgroundName(n int) string { return fmt.Sprintf("crowd-%05d", n) }
