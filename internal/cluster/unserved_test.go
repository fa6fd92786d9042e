package cluster

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects that a user could expect to be served are named with the field that prevents it, and no others: not
// 10,000 Services of type ClusterIP. What is corrected or deleted is no longer named.
func TestUnserved(t *testing.T) {
	service := func(name string, kind corev1.ServiceType, class *string, annotations ...string) *corev1.Service {
		o := annotated(annotations...)
		o.Name, o.Spec.Type, o.Spec.LoadBalancerClass = name, kind, class
		return o
	}
	slice := func(name, service string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
				Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
	}
	other := "example.com/lb"
	b := NewBuilder()
	b.Limit(Scope{Unserved: true})
	for i := range 1000 {
		b.Set(service(fmt.Sprint("plain-", i), corev1.ServiceTypeClusterIP, nil, "example.com/x",
			sourceRangesAnnotation), "")
	}
	b.Set(service("web", corev1.ServiceTypeLoadBalancer, nil), "")
	b.Set(service("other", corev1.ServiceTypeLoadBalancer, &other), "")
	b.Set(service("cluster-ip", corev1.ServiceTypeClusterIP, nil, "fanfare.io/adress-pool"), "")
	b.Set(service("node-port", corev1.ServiceTypeNodePort, nil, "metallb.io/address-pool"), "")
	b.Set(slice("web-1", "web"), "")
	b.Set(slice("plain-1", "plain-1"), "")
	b.Set(slice("lost", "wbe"), "")
	want := []string{
		"EndpointSlice shop/lost is of Service shop/wbe, which does not exist",
		"Service shop/cluster-ip has the annotation fanfare.io/adress-pool and spec.type ClusterIP: only a Service " +
			"of type LoadBalancer gets an address",
		"Service shop/node-port has the annotation metallb.io/address-pool and spec.type NodePort: only a Service of " +
			"type LoadBalancer gets an address",
		`Service shop/other has spec.loadBalancerClass "example.com/lb": Fanfare serves fanfare.io/lb, and the classes of --lb-class. A Service's class cannot be changed`,
	}
	if have := b.Snapshot().Unserved; !slices.Equal(have, want) {
		t.Errorf("have %q", have)
	}
	b.Set(service("wbe", corev1.ServiceTypeLoadBalancer, nil), "")
	b.Set(service("cluster-ip", corev1.ServiceTypeLoadBalancer, nil), "")
	b.Delete(Key{"Service", Name{"shop", "other"}})
	b.Delete(Key{"Service", Name{"shop", "node-port"}})
	if have := b.Snapshot().Unserved; len(have) != 0 {
		t.Errorf("after corrections: %q", have)
	}
	if have := Parse(service("other", corev1.ServiceTypeLoadBalancer, &other)).Unserved; have != nil {
		t.Errorf("without the scope: %q", have)
	}
}
