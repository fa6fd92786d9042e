package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

const (
	namespace = "shop"
	// statusInterval is how often a kubelet writes an unchanged status (nodeStatusReportFrequency).
	statusInterval = 5 * time.Minute
	// images is how many images a kubelet reports (nodeStatusMaxImages), which is most of a Node.
	images = 50
)

const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: ` + namespace + `}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: bench}
spec: {announce: BGP, addresses: [198.18.0.0/15]}
`

func nodeName(i int) string    { return fmt.Sprintf("node%04d", i) }
func serviceName(i int) string { return fmt.Sprintf("s%05d", i) }

// nodeAddress is a loopback address, where the hollow speaker of the node listens.
func nodeAddress(i int) string { return fmt.Sprintf("127.77.%d.%d", i/250, 1+i%250) }

// createNode creates a Node as large as a kubelet's.
func (b *bench) createNode(ctx context.Context, i int) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname: nodeName(i), "topology.kubernetes.io/zone": fmt.Sprint("z", i%3),
		},
	}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(i)},
		{Type: corev1.NodeHostName, Address: nodeName(i)}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}}
	for j := range images {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{
			fmt.Sprintf("registry.example/team/image%d@sha256:%064x", j, j),
			fmt.Sprintf("registry.example/team/image%d:v1.2.%d", j, j),
		}, SizeBytes: 1e8})
	}
	if err := b.core.Post().Resource("nodes").Body(n).Do(ctx).Error(); err != nil {
		return fmt.Errorf("node %d: %w", i, err)
	}
	return nil
}

// reportNodes writes the heartbeats of the Nodes, as kubelets do.
func (b *bench) reportNodes(ctx context.Context) {
	ticks := time.NewTicker(statusInterval / time.Duration(b.Nodes))
	defer ticks.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		patch, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				LastHeartbeatTime: metav1.Now()},
		}}})
		// While the API server restarts, a heartbeat is lost.
		_ = b.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(nodeName(i % b.Nodes)).SubResource(
			"status").Body(patch).Do(ctx).Error()
	}
}

// createServices creates n more Services, each with five endpoints, at most so many in a second.
func (b *bench) createServices(ctx context.Context, n int, perSecond rate.Limit) error {
	pace := rate.NewLimiter(perSecond, 1)
	from := b.created
	b.created += n
	return b.parallel(n, func(i int) error {
		if err := pace.Wait(ctx); err != nil {
			return err
		}
		name := serviceName(from + i)
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: new(bool),
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		}}
		if err := b.core.Post().Namespace(namespace).Resource("services").Body(s).Do(ctx).Error(); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
		return b.discovery.Post().Namespace(namespace).Resource("endpointslices").Body(b.slice(from+i, rand.IntN(200))).
			Do(ctx).Error()
	})
}

const endpointsPerService = 5

// slice is the EndpointSlice of a Service; other is the last byte of its last address.
func (b *bench) slice(service, other int) *discoveryv1.EndpointSlice {
	name, http, port, ready := serviceName(service), "http", int32(8080), true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
	}
	for i := range endpointsPerService {
		node, last := nodeName((service+i)%b.Nodes), i
		if i == endpointsPerService-1 {
			last = 10 + other
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.244.%d.%d", (service+i)%b.Nodes, 1+last)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// changeEndpoint moves one endpoint of a Service, and returns its slice.
func (b *bench) changeEndpoint(ctx context.Context) (*discoveryv1.EndpointSlice, error) {
	i := rand.IntN(b.created)
	s := b.slice(i, rand.IntN(200))
	return s, b.discovery.Put().Namespace(namespace).Resource("endpointslices").Name(s.Name).Body(s).Do(ctx).Error()
}

// awaitAssigned returns when all Services have addresses.
func (b *bench) awaitAssigned(ctx context.Context) error {
	return lab.Await(ctx, 10*time.Minute, "the addresses of all Services", func() error {
		if n := int(b.addresses.count.Load()); n != b.created {
			return fmt.Errorf("%d of %d", n, b.created)
		}
		return nil
	})
}
