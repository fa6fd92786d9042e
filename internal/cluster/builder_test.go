package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

func newService(name string, status ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	for _, ip := range status {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return s
}

func newSlice(name, service string, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("n1")})
	}
	return s
}

func newPool(name string, addrs ...string) *v1alpha1.AddressPool {
	return &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AddressPoolSpec{Announce: v1alpha1.AnnounceBGP, Addresses: addrs}}
}

func newNamespace(name, team string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
}

func newServiceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": "a"}}}
}

func newAdvertisement(name string, length int32) *v1alpha1.BGPAdvertisement {
	return &v1alpha1.BGPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BGPAdvertisementSpec{AggregationLength: &length},
	}
}

func newPeer(name, addr string) *v1alpha1.BGPPeer {
	return &v1alpha1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BGPPeerSpec{PeerAddress: addr, PeerASN: v1alpha1.PeerASN{Number: 64512}, MyASN: 64513},
	}
}

// One change must leave every other part the very same pointer: that is how the
// speaker finds out what to do.
func TestSharing(t *testing.T) {
	b := NewBuilder()
	for _, o := range []runtime.Object{
		newService("a", "192.0.2.1"), newService("b"), newService("c"),
		newSlice("a1", "a", "10.0.0.1"), newSlice("b1", "b", "10.0.0.2"), newSlice("b2", "b", "10.0.0.3"),
		newNode("n1"), newNode("n2"), newPool("lan", "192.0.2.0/24"), newPeer("tor", "10.0.0.254"),
	} {
		b.Set(o, "")
	}
	before := b.Snapshot()

	// What does not change the meaning of an object changes nothing at all.
	again := newSlice("b1", "b", "10.0.0.2")
	again.ResourceVersion, again.Annotations = "2", map[string]string{"a": "b"}
	b.Set(again, "")
	b.Set(newPool("lan", "192.0.2.0/24"), "")
	b.Set(newNode("n1"), "")
	if b.Snapshot() != before {
		t.Error("another snapshot of equal objects")
	}

	b.Set(newSlice("b1", "b", "10.0.0.4"), "")
	after := b.Snapshot()
	if after == before {
		t.Fatal("the same snapshot although an endpoint changed")
	}
	for i, s := range after.Services {
		old := before.Services[i]
		if s.Spec != old.Spec {
			t.Errorf("%s: another Spec", s.Name)
		}
		if changed := s.Endpoints != old.Endpoints; changed != (s.Name.Name == "b") {
			t.Errorf("%s: other Endpoints: %v", s.Name, changed)
		}
	}
	for what, same := range map[string]bool{
		"Nodes":       sameArray(before.Nodes, after.Nodes),
		"Pools":       sameArray(before.Pools, after.Pools),
		"Peers":       sameArray(before.Peers, after.Peers),
		"Assignments": sameArray(before.Assignments, after.Assignments),
	} {
		if !same {
			t.Errorf("%s: another array", what)
		}
	}
	if before.Services[1].Endpoints.List[0].Addr.String() != "10.0.0.2:8080" {
		t.Error("the snapshot before was written to")
	}
}

func sameArray[T any](a, b []T) bool {
	return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0]
}

// Whatever happened, and in whatever order, the snapshot is that of the objects
// which are there.
func TestIncrementalIsWhole(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		b := NewBuilder()
		objects := map[Key]runtime.Object{}
		for range 60 {
			o := randomObject(rnd)
			key, _ := KeyOf(o)
			if objects[key] != nil && rnd.IntN(3) == 0 {
				delete(objects, key)
				b.Delete(key)
			} else {
				objects[key] = o
				b.Set(o, "")
			}
			if rnd.IntN(3) == 0 {
				b.Snapshot() // Change by change, or several at once.
			}
		}
		var all []runtime.Object
		for _, o := range objects {
			all = append(all, o) // in any order
		}
		if d := gocmp.Diff(render(Parse(all...)), render(b.Snapshot())); d != "" {
			t.Fatalf("seed %d: -from nothing +step by step:\n%s", seed, d)
		}
	}
}

// randomObject has no mistake in it: what becomes of one depends on the version
// before, and is for other tests.
func randomObject(rnd *rand.Rand) runtime.Object {
	n := rnd.IntN(4)
	name := string(rune('a' + n))
	ip := fmt.Sprintf("10.0.%d.%d", rnd.IntN(2), rnd.IntN(4))
	switch rnd.IntN(10) {
	case 0:
		return newService(name)
	case 1:
		s := newService(name, fmt.Sprintf("192.0.2.%d", rnd.IntN(3)))
		s.CreationTimestamp = metav1.Unix(int64(1000+rnd.IntN(2)), 0)
		return s
	case 2:
		s := newService(name)
		s.Spec.Type = corev1.ServiceTypeClusterIP
		return s
	case 3, 4:
		s := newSlice(fmt.Sprint("s", n), string(rune('a'+rnd.IntN(4))), ip)
		s.Endpoints[0].Conditions.Ready = new(rnd.IntN(2) == 0)
		return s
	case 5:
		return newPool(name, fmt.Sprintf("192.0.2.%d-192.0.2.%d", n, n+rnd.IntN(2)))
	case 6:
		return newNamespace(name, fmt.Sprint(rnd.IntN(2)))
	case 7:
		return newServiceCIDR(name, fmt.Sprintf("192.0.2.%d/31", 2*rnd.IntN(2)))
	case 8:
		o := newNode(name)
		o.Labels["rack"] = fmt.Sprint(rnd.IntN(2))
		o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", rnd.IntN(6))}}
		return o
	default:
		return newPeer(name, ip)
	}
}

// A mistake does not take away what was there, and mending it takes effect.
func TestMistakeKeepsTheVersionBefore(t *testing.T) {
	b := NewBuilder()
	b.Set(newPeer("tor", "10.0.0.254"), "")
	b.Set(newPool("lan", "192.0.2.0/24"), "")
	good := b.Snapshot()
	b.Set(newPeer("tor", "10.0.0.256"), "")
	b.Set(newPool("lan", "192.0.2.0/24", "192.0.3.0/33"), "")
	s := b.Snapshot()
	if s.Peers[0] != good.Peers[0] || s.Pools[0] != good.Pools[0] {
		t.Errorf("a mistake replaced a good version:\n%s", render(s))
	}
	if len(s.Problems) != 2 || !slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Field == "spec.addresses[1]" }) {
		t.Errorf("problems: %v", s.Problems)
	}
	b.Set(newPeer("tor", "10.0.0.253"), "")
	b.Set(newPool("lan", "192.0.2.0/24", "192.0.3.0/24"), "")
	s = b.Snapshot()
	if s.Peers[0].Address.String() != "10.0.0.253" || len(s.Pools[0].Ranges) != 2 || len(s.Problems) != 0 {
		t.Errorf("not mended:\n%s", render(s))
	}
	b.Set(newPeer("tor", ""), "")
	b.Delete(Key{"BGPPeer", Name{Name: "tor"}})
	if s = b.Snapshot(); len(s.Peers) != 0 || len(s.Problems) != 0 {
		t.Errorf("not deleted:\n%s", render(s))
	}
}

// A change of Nodes replaces only the pools that contain the Node's addresses: a new pool
// makes every reader check all addresses again.
func TestPoolsStayTheSame(t *testing.T) {
	b := NewBuilder()
	for _, o := range []runtime.Object{newPool("lan", "192.0.2.0/24"), newPool("dmz", "198.51.100.0/24"), newNode("n1"), newPeer("tor", "10.0.0.254")} {
		b.Set(o, "")
	}
	was := b.Snapshot()
	o := newNode("n1")
	o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	b.Set(o, "")
	b.Set(newPeer("tor", "10.0.0.253"), "")
	is := b.Snapshot()
	if !sameArray(was.Pools, is.Pools) || is == was {
		t.Errorf("other pools, although nothing has changed in them:\n%s", render(is))
	}
	o = o.DeepCopy()
	o.Status.Addresses[0].Address = "192.0.2.7"
	b.Set(o, "")
	is = b.Snapshot()
	if is.Pools[0] != was.Pools[0] || is.Pools[1] == was.Pools[1] || is.Pools[1].OccupiedBy(netip.MustParseAddr("192.0.2.7")) != "Node n1" || len(is.Problems) != 1 {
		t.Errorf("a node has an address of lan:\n%s", render(is))
	}
	b.Delete(Key{"Node", Name{Name: "n1"}})
	if is = b.Snapshot(); len(is.Pools[1].Occupied) != 0 || len(is.Problems) != 0 || len(was.Pools[1].Occupied) != 0 {
		t.Errorf("the node is gone:\n%s", render(is))
	}
}

func TestLeavingTaints(t *testing.T) {
	for _, taint := range leavingTaints {
		n := newNode("n1")
		n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: taint}}
		if got, _ := parseNode(n); got.Leaving != taint {
			t.Errorf("%s: leaving %q", taint, got.Leaving)
		}
	}
}
