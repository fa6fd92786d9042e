package speaker

import (
	"encoding/json"
	"errors"
	"fmt"
	goruntime "runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// The memory for a Service with two endpoints, as decoded from an API server, and for its
// decision, is bounded: every node pays for every Service.
func TestFootprint(t *testing.T) {
	const services, limit = 2000, 3600 // bytes per Service
	b, decider := cluster.NewBuilder(), plan.NewDecider(plan.Config{Node: "n1"})
	b.Set(&v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"},
		Spec: v1alpha1.AddressPoolSpec{Announce: v1alpha1.AnnounceBGP, Addresses: []string{"198.18.0.0/16"}}}, "")
	b.Set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, "")
	before := heap()
	for i := range services {
		for _, o := range fromServer(t, i) {
			b.Set(o, "")
		}
	}
	d := decider.Decide(ipam.NewReader(builderSource{b}).Snapshot())
	kept := int(heap()-before) / services
	if n := d.Addresses.Len(); n != services {
		t.Fatalf("%d addresses of %d Services", n, services)
	}
	if t.Logf("%d bytes a Service", kept); kept > limit {
		t.Errorf("%d bytes a Service, and %d were enough", kept, limit)
	}
	goruntime.KeepAlive(b)
	goruntime.KeepAlive(decider)
}

type builderSource struct{ *cluster.Builder }

func (builderSource) Changed() <-chan struct{} { return nil }

// heap returns the bytes in use.
func heap() uint64 {
	goruntime.GC()
	goruntime.GC() // collects what the first one finalized
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fromServer returns the objects of a Service, decoded as from a server: no string shares
// memory with another object's.
func fromServer(t *testing.T, i int) []runtime.Object {
	t.Helper()
	const namespace, node = "a-namespace-of-some-length", "node-%d.a-region.compute.internal"
	name, vip := fmt.Sprintf("service-%05d", i), fmt.Sprintf("198.18.%d.%d", i>>8, i&255)
	uid := types.UID(fmt.Sprintf("01234567-89ab-cdef-0123-%012d", i))
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uid, ResourceVersion: fmt.Sprint(100000 + i),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy:        new(corev1.IPFamilyPolicySingleStack),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			Ports:                 []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: vip}}},
			Conditions: []metav1.Condition{{Type: cluster.AddressAssigned, Status: metav1.ConditionTrue,
				Reason: string(cluster.Assigned), Message: vip + " of pool lan"}},
		},
	}
	endpoints := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-x", Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP),
			Port: new(int32(8080))}},
	}
	for n := range 2 {
		endpoints.Endpoints = append(endpoints.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", n, i>>8, i&255)}, NodeName: new(fmt.Sprintf(node, n)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		})
	}
	claim := &v1alpha1.AddressClaim{
		ObjectMeta: metav1.ObjectMeta{Name: vip, UID: uid, ResourceVersion: fmt.Sprint(200000 + i)},
		Spec: v1alpha1.AddressClaimSpec{Address: vip, Pool: "lan", Holders: []v1alpha1.ClaimHolder{{
			Namespace: namespace, Name: name, UID: string(uid), ResourceVersion: service.ResourceVersion,
		}}},
	}
	return []runtime.Object{decoded(t, service, &corev1.Service{}), decoded(t, endpoints, &discoveryv1.EndpointSlice{}),
		asJSON(t, claim)}
}

type protobuf interface {
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

func decoded(t *testing.T, o, into protobuf) runtime.Object {
	t.Helper()
	data, err := o.Marshal()
	if err := errors.Join(err, into.Unmarshal(data)); err != nil {
		t.Fatal(err)
	}
	return into
}

func asJSON(t *testing.T, c *v1alpha1.AddressClaim) runtime.Object {
	t.Helper()
	var into v1alpha1.AddressClaim
	data, err := json.Marshal(c)
	if err := errors.Join(err, json.Unmarshal(data, &into)); err != nil {
		t.Fatal(err)
	}
	return &into
}
