package clustertest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// An Object is any object of Kubernetes.
type Object interface {
	runtime.Object
	metav1.Object
}

func Service(name string, status ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	for _, ip := range status {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return s
}

func EndpointSlice(name, service string, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("n1")})
	}
	return s
}

func Pool(name string, addrs ...string) *v1alpha1.AddressPool {
	return &v1alpha1.AddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AddressPoolSpec{Announce: v1alpha1.AnnounceBGP, Addresses: addrs},
	}
}

func Namespace(name, team string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
}

func ServiceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}

func Node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": "a"}}}
}

func Advertisement(name string, length int32) *v1alpha1.BGPAdvertisement {
	return &v1alpha1.BGPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BGPAdvertisementSpec{AggregationLength: &length},
	}
}

func Peer(name, addr string) *v1alpha1.BGPPeer {
	return &v1alpha1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BGPPeerSpec{PeerAddress: addr, PeerASN: v1alpha1.PeerASN{Number: 64512}, MyASN: 64513},
	}
}

func Claim(addr string, holders ...string) *v1alpha1.AddressClaim {
	c := &v1alpha1.AddressClaim{}
	c.Name, c.Spec.Address, c.Spec.Pool = addr, addr, "lan"
	for _, h := range holders {
		c.Spec.Holders = append(c.Spec.Holders, v1alpha1.ClaimHolder{Namespace: "default", Name: h})
	}
	return c
}

// Random has no mistake in it: what becomes of one depends on the version
// before, and is for other tests.
func Random(rnd *rand.Rand) runtime.Object {
	n := rnd.IntN(4)
	name := string(rune('a' + n))
	ip := fmt.Sprintf("10.0.%d.%d", rnd.IntN(2), rnd.IntN(4))
	switch rnd.IntN(10) {
	case 0:
		return Service(name)
	case 1:
		s := Service(name, fmt.Sprintf("192.0.2.%d", rnd.IntN(3)))
		s.CreationTimestamp = metav1.Unix(int64(1000+rnd.IntN(2)), 0)
		return s
	case 2:
		s := Service(name)
		s.Spec.Type = corev1.ServiceTypeClusterIP
		return s
	case 3, 4:
		s := EndpointSlice(fmt.Sprint("s", n), string(rune('a'+rnd.IntN(4))), ip)
		s.Endpoints[0].Conditions.Ready = new(rnd.IntN(2) == 0)
		return s
	case 5:
		return Pool(name, fmt.Sprintf("192.0.2.%d-192.0.2.%d", n, n+rnd.IntN(2)))
	case 6:
		return Namespace(name, fmt.Sprint(rnd.IntN(2)))
	case 7:
		return ServiceCIDR(name, fmt.Sprintf("192.0.2.%d/31", 2*rnd.IntN(2)))
	case 8:
		o := Node(name)
		o.Labels["rack"] = fmt.Sprint(rnd.IntN(2))
		o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: fmt.Sprintf("192.0.2.%d", rnd.IntN(6))}}
		return o
	default:
		return Peer(name, ip)
	}
}

// Comparers says how to compare what cmp cannot look into.
var Comparers = []gocmp.Option{
	gocmp.Exporter(func(reflect.Type) bool { return true }),
	gocmp.FilterPath(func(p gocmp.Path) bool {
		return !strings.HasSuffix(p.Last().String(), ".requirements")
	}, cmpopts.EquateEmpty()),
	gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	gocmp.Comparer(func(a, b netipx.IPRange) bool { return a == b }),
	gocmp.Comparer(func(a, b labels.Selector) bool { return fmt.Sprint(a) == fmt.Sprint(b) }),
}

// SameArray reports whether two slices, which must not be empty, share their memory.
func SameArray[T any](a, b []T) bool {
	return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0]
}
