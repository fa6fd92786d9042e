package kube

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// maxServices is bounded by crowdPods.
const maxServices = 50_000

// pool has room for all of them and for the measured ones.
// prefix has all addresses of Services.
const prefix = "198.18.0.0/16"

// announced is how the pool announces them: BGP or Advertised.
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
			// There are 2,768 ports for all nodes, and the Service needs none.
			AllocateLoadBalancerNodePorts: new(bool),
			Ports:                         []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: port}},
		},
	}
}

// A pod is an endpoint.
type pod struct {
	addr netip.Addr
	node string
}

// realPod is one of the lab's, which answers.
func realPod(name string) pod {
	return pod{lab.PodAddr(name, corev1.IPv4Protocol), lab.NodeOf(name)}
}

// crowdPods are the endpoints of the n-th Service of the crowd: two pods of its
// own, on two nodes, without real pods. The generation is in their addresses.
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
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(podPort))}},
	}
	for i, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{p.addr.String()},
			NodeName:   &p.node,
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d", service, i)},
		})
	}
	return s
}

func backgroundName(n int) string { return fmt.Sprintf("crowd-%05d", n) }
