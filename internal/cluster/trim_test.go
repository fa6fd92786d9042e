package cluster

import (
	"fmt"
	"math/rand"
	"reflect"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// trimmed is what is left of o.
func trimmed(o clustertest.Object) clustertest.Object {
	out := o.DeepCopyObject().(clustertest.Object)
	Trim(out)
	return out
}

// Nothing that is dropped is missed, whatever fields an object has.
func TestTrimKeepsTheMeaning(t *testing.T) {
	fill := randfill.New().RandSource(rand.NewSource(1)).NilChance(0.2).NumElements(1, 3).MaxDepth(12).Funcs(
		func(q *apiresource.Quantity, _ randfill.Continue) { *q = apiresource.MustParse("1") },
		func(r *metav1.FieldsV1, _ randfill.Continue) { r.SetRawBytes([]byte(`{}`)) },
	)
	for i := range 100 {
		for _, o := range []clustertest.Object{
			new(corev1.Service), new(discoveryv1.EndpointSlice), new(corev1.Node),
			new(v1alpha1.AddressPool), new(v1alpha1.BGPPeer), new(v1alpha1.BGPAdvertisement),
			new(v1alpha1.AddressClaim), new(v1alpha1.L2Advertisement), new(v1alpha1.SpeakerStatus),
		} {
			fill.Fill(o)
			valid(o, i)
			want, got := Parse(o), Parse(trimmed(o))
			if d := gocmp.Diff(want, got, clustertest.Comparers...); d != "" {
				t.Fatalf("%T -whole +trimmed:\n%s", o, d)
			}
		}
	}
}

// valid puts what is understood into fields of o, which random text seldom is.
func valid(o clustertest.Object, i int) {
	o.SetName("a")
	ip := fmt.Sprintf("192.0.2.%d", i%256)
	switch o := o.(type) {
	case *corev1.Service:
		o.Spec.Type, o.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, nil
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: AddressAssigned, Reason: "x"})
		if o.Annotations == nil {
			o.Annotations = map[string]string{}
		}
		for j, keys := range [][]string{addressAnnotations, poolAnnotations, sharingAnnotations,
			{sourceRangesAnnotation}, {schedulerAnnotation}, {SharingNamespacesAnnotation}, {ReserveAnnotation},
			{l2NodeAnnotation}} {
			o.Annotations[keys[i%len(keys)]] = []string{ip, "lan", "yes", "192.0.2.0/24", SchedulerMaglev, "dev",
				"true", "n1"}[j]
		}
		if i%2 == 0 {
			o.Spec.LoadBalancerSourceRanges = nil // or the annotation does not count
		}
		o.Labels = map[string]string{serviceProxyLabel: "fanfare", "b": "c"}
		o.Spec.ExternalTrafficPolicy, o.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32000
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	case *discoveryv1.EndpointSlice:
		o.AddressType = discoveryv1.AddressTypeIPv4
		o.Labels = map[string]string{
			discoveryv1.LabelServiceName: "a", discoveryv1.LabelManagedBy: sliceController, "b": "c",
		}
		for j := range o.Endpoints {
			o.Endpoints[j].Addresses = []string{ip}
		}
	case *corev1.Node:
		o.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "", "b": "c"}
		o.Spec.Taints = append(o.Spec.Taints, corev1.Taint{Key: leavingTaints[i%len(leavingTaints)]})
		o.Spec.PodCIDRs = []string{"10.244.0.0/24"}
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		o.Status.Conditions = append(o.Status.Conditions,
			corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue},
			corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse})
	case *v1alpha1.AddressPool:
		o.Spec.Addresses = []string{"192.0.2.0/24"}
	case *v1alpha1.BGPPeer:
		o.Spec = clustertest.Peer("a", ip).Spec
	case *v1alpha1.BGPAdvertisement:
		o.Spec = v1alpha1.BGPAdvertisementSpec{
			Pools: []string{"lan"}, AggregationLength: new(int32(i % 33)),
			NodeSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"b": "c"}},
		}
	case *v1alpha1.L2Advertisement:
		o.Spec = v1alpha1.L2AdvertisementSpec{Pools: []string{"lan"}, Interfaces: []string{"eth0", "bond*"}}
	case *v1alpha1.SpeakerStatus:
		for i := range o.Status.Interfaces {
			o.Status.Interfaces[i].Prefixes = []string{"192.0.2.0/24"}
		}
	case *v1alpha1.AddressClaim:
		o.SetName(ip)
		o.Spec.Address = ip
	}
}

// What is dropped is gone: the large parts of objects in a real cluster.
func TestTrimDrops(t *testing.T) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	s := clustertest.Service("a")
	s.ManagedFields = managed
	s.Annotations = map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": "{}", "fanfare.io/address-pool": "lan",
	}
	s.Spec.Selector = map[string]string{"a": "b"}
	want := clustertest.Service("a")
	want.Annotations = map[string]string{"fanfare.io/address-pool": "lan"}
	drops(t, s, want)

	e := clustertest.EndpointSlice("a", "a", "10.0.0.1")
	e.ManagedFields = managed
	e.OwnerReferences = []metav1.OwnerReference{{Name: "a"}}
	e.Endpoints[0].TargetRef, e.Endpoints[0].Zone = &corev1.ObjectReference{Name: "p"}, new("z")
	drops(t, e, clustertest.EndpointSlice("a", "a", "10.0.0.1"))

	n := clustertest.Node("n1")
	n.ManagedFields, n.Annotations = managed, map[string]string{"a": "b"}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"i"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure}, {Type: corev1.NodeReady},
		{Type: corev1.NodeNetworkUnavailable}}
	wantNode := clustertest.Node("n1")
	wantNode.Status.Conditions = n.Status.Conditions[1:]
	drops(t, n, wantNode)
}

func drops(t *testing.T, o, want clustertest.Object) {
	t.Helper()
	if got := trimmed(o); !reflect.DeepEqual(want, got) {
		t.Errorf("%T -want +got:\n%s", o, gocmp.Diff(want, got))
	}
}
