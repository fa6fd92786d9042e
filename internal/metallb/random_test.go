package metallb

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// randomSelectors returns up to three selectors of the labels that randomLabels has.
func randomSelectors(r *rand.Rand) (list []metav1.LabelSelector) {
	operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
		metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}
	for range r.IntN(4) {
		var s metav1.LabelSelector
		for range r.IntN(3) {
			key := []string{"rack", "disk"}[r.IntN(2)]
			if r.IntN(2) == 0 {
				metav1.AddLabelToSelector(&s, key, []string{"a", "b"}[r.IntN(2)])
				continue
			}
			e := metav1.LabelSelectorRequirement{Key: key, Operator: operators[r.IntN(4)]}
			if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
				e.Values = [][]string{{"a"}, {"b"}, {"c", "a"}}[r.IntN(3)]
			}
			s.MatchExpressions = append(s.MatchExpressions, e)
		}
		list = append(list, s)
	}
	return list
}

func randomLabels(r *rand.Rand) map[string]string {
	set := map[string]string{}
	for _, key := range []string{"rack", "disk"} {
		if i := r.IntN(4); i > 0 {
			set[key] = []string{"", "a", "b", "c"}[i]
		}
	}
	return set
}

// The selectors that a list becomes select the same, and the disjoint ones never two for one object.
func TestSelectorsOfLists(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		list, set := randomSelectors(r), randomLabels(r)
		want := matchesAny(list, set)
		united := matching(t, unite(list), set)
		apart := matching(t, disjoint(unite(list)), set)
		if (united > 0) != want || (apart > 0) != want || apart > 1 {
			t.Fatalf("%v of %v: want %v, %d selectors match, %d disjoint ones", set, list, want, united, apart)
		}
	}
}

func matching(t *testing.T, list []conjunction, set map[string]string) (n int) {
	t.Helper()
	for _, c := range list {
		selector, err := metav1.LabelSelectorAsSelector(c.selector().Meta())
		if c.selector() == nil {
			selector, err = labels.Everything(), nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if selector.Matches(labels.Set(set)) {
			n++
		}
	}
	return n
}

// In random clusters, nodes announce the same before and after, with the same attributes, and every
// Service keeps its addresses. Only Services with policy Local in an aggregate differ, which are left
// out.
func TestNothingDiffers(t *testing.T) {
	announced := 0
	for seed := range uint64(200) {
		c := randomCluster(rand.New(rand.NewPCG(seed, 3)))
		out := Convert(c, Options{})
		d := Compare(c, out, Options{})
		for _, n := range out.Notes {
			if !n.Warning {
				t.Errorf("seed %d: %s", seed, n)
			}
		}
		if d.Differences() != 0 || len(d.Problems) != 0 {
			report, _ := Report(c, out, d)
			t.Fatalf("seed %d:\n%s", seed, report)
		}
		checkCRDs(t, out)
		announced += len(d.After)
	}
	if announced < 1000 {
		t.Errorf("only %d announcements: the clusters are too quiet to show anything", announced)
	}
}

// randomCluster is a cluster with two pools, routers, advertisements and a few Services.
func randomCluster(r *rand.Rand) *Cluster {
	c := &Cluster{}
	for i := range 3 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1), Labels: randomLabels(r)}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.0.%d", i+1)}}
		if r.IntN(10) == 0 {
			n.Labels[corev1.LabelNodeExcludeBalancers] = ""
		}
		c.Nodes = append(c.Nodes, n)
	}
	for i := range 2 {
		p := &IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i), Labels: randomLabels(r)}}
		p.Spec.Addresses = []string{fmt.Sprintf("192.0.2.%d/26", 64*i)}
		c.Pools = append(c.Pools, p)
	}
	for i := range 1 + r.IntN(3) {
		p := &BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("tor%d", i)}}
		p.Spec = BGPPeerSpec{
			MyASN: 64513, PeerASN: 64513, PeerAddress: fmt.Sprintf("10.0.1.%d", i), NodeSelectors: randomSelectors(r),
		}
		c.Peers = append(c.Peers, p)
	}
	aggregates := r.IntN(2) == 0
	addAdvertisements(r, c, aggregates)
	addServices(r, c, aggregates)
	return c
}

func addAdvertisements(r *rand.Rand, c *Cluster, aggregates bool) {
	localPref := uint32(200 * r.IntN(2)) // MetalLB refuses different ones
	for i := range r.IntN(4) {
		a := &BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bgp%d", i)}}
		a.Spec = BGPAdvertisementSpec{
			LocalPref: localPref, Selection: Selection{
				NodeSelectors: randomSelectors(r), IPAddressPoolSelectors: randomSelectors(r),
			},
		}
		if r.IntN(2) == 0 {
			a.Spec.IPAddressPools = []string{"p0"}
		}
		if r.IntN(2) == 0 {
			a.Spec.Communities = []string{fmt.Sprintf("64513:%d", i), "large:64513:1:2"}
		}
		if r.IntN(2) == 0 {
			a.Spec.Peers = []string{"tor0"}
		}
		if aggregates && r.IntN(2) == 0 {
			a.Spec.AggregationLength = new(int32(26))
		} else {
			a.Spec.ServiceSelectors = randomSelectors(r)
		}
		c.Advertisements = append(c.Advertisements, a)
	}
	for i := range r.IntN(3) {
		a := &L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("l2-%d", i)}}
		a.Spec = L2AdvertisementSpec{Selection: Selection{
			NodeSelectors: randomSelectors(r), IPAddressPoolSelectors: randomSelectors(r),
			ServiceSelectors: randomSelectors(r),
		}}
		a.Spec.Interfaces = [][]string{nil, {"eth0"}, {"eth1", "bond0"}}[r.IntN(3)]
		c.L2Advertisements = append(c.L2Advertisements, a)
	}
}

func addServices(r *rand.Rand, c *Cluster, aggregates bool) {
	for i := range 4 {
		name := fmt.Sprintf("s%d", i)
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: randomLabels(r)}}
		s.Spec = corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		}
		if !aggregates && r.IntN(3) == 0 {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("192.0.2.%d", 64*r.IntN(2)+i+1)}}
		c.Services = append(c.Services, s)
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name},
		}}
		slice.AddressType, slice.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Port: new(int32(80))}}
		for j := range r.IntN(4) {
			conditions := discoveryv1.EndpointConditions{Ready: new(r.IntN(3) > 0)}
			if !*conditions.Ready { // It ends. With policy Local, Fanfare then prefers other nodes.
				conditions.Serving, conditions.Terminating = new(!isLocal(s) && r.IntN(2) == 0), new(true)
			}
			slice.Endpoints = append(slice.Endpoints,
				discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf("10.244.%d.%d", j, i)}, NodeName: new(fmt.Sprintf("n%d", j+1)),
					Conditions: conditions,
				})
		}
		c.EndpointSlices = append(c.EndpointSlices, slice)
	}
}
