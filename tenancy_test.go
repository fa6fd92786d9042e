package fanfare

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// A tenant is the objects of one namespace that has a Service with an address in each pool.
type tenant struct {
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
}

// attacks are what a user of a namespace writes, by the name of the annotation or the field. The
// table in docs/concepts/security.md has a row for each.
var attacks = map[string][]func(*tenant){
	"fanfare.io/load-balancer-ips": annotated("fanfare.io/load-balancer-ips", theirs,
		"192.0.2.9", "x", strings.Repeat("192.0.2.9,", 9000)),
	"metallb.io/loadBalancerIPs":          annotated("metallb.io/loadBalancerIPs", theirs),
	"metallb.universe.tf/loadBalancerIPs": annotated("metallb.universe.tf/loadBalancerIPs", theirs),
	"fanfare.io/address-pool": annotated("fanfare.io/address-pool", "lan,wire",
		"restricted", "no-such-pool"),
	"metallb.io/address-pool": annotated("metallb.io/address-pool", "restricted"),
	"metallb.universe.tf/address-pool": annotated("metallb.universe.tf/address-pool",
		"restricted"),
	"fanfare.io/allow-shared-ip": append(sharing("fanfare.io/allow-shared-ip"),
		annotated("fanfare.io/allow-shared-ip", "k")...),
	"metallb.io/allow-shared-ip":            sharing("metallb.io/allow-shared-ip"),
	"metallb.universe.tf/allow-shared-ip":   sharing("metallb.universe.tf/allow-shared-ip"),
	"fanfare.io/allow-shared-ip-namespaces": sharing("fanfare.io/allow-shared-ip"),
	"fanfare.io/reserve":                    annotated("fanfare.io/reserve", "true", "x"),
	"fanfare.io/bgp-communities": annotated("fanfare.io/bgp-communities",
		"blackhole, no-advertise, 64500:1, 64500:1:2", strings.Repeat("64500:1,", 9000)),
	"fanfare.io/l2-node": annotated("fanfare.io/l2-node", "n1", "n2",
		"no-such-node"),
	"fanfare.io/scheduler": annotated("fanfare.io/scheduler", "maglev", "source-hash",
		"x"),
	"service.beta.kubernetes.io/load-balancer-source-ranges": annotated(
		"service.beta.kubernetes.io/load-balancer-source-ranges", "203.0.113.0/24", "x"),
	"service.kubernetes.io/service-proxy-name": {func(e *tenant) {
		e.service.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
	}},

	"metadata.labels": {func(e *tenant) { e.service.Labels = map[string]string{"tier": "gold"} }},
	"metadata.name": {func(e *tenant) {
		e.service.Name, e.slice.Labels[discoveryv1.LabelServiceName] = "web", "web"
	}},
	"spec.type": {spec(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeClusterIP })},
	"spec.loadBalancerClass": {spec(func(s *corev1.ServiceSpec) {
		s.LoadBalancerClass = new("example.com/other")
	})},
	"spec.loadBalancerIP": {spec(func(s *corev1.ServiceSpec) { s.LoadBalancerIP = "192.0.2.5" })},
	"spec.loadBalancerSourceRanges": {spec(func(s *corev1.ServiceSpec) {
		s.LoadBalancerSourceRanges = []string{"203.0.113.0/24", "x"}
	})},
	"spec.externalTrafficPolicy": {spec(func(s *corev1.ServiceSpec) {
		s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})},
	"spec.internalTrafficPolicy": {spec(func(s *corev1.ServiceSpec) {
		s.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	})},
	"spec.healthCheckNodePort": {func(e *tenant) {
		e.service.Spec.ExternalTrafficPolicy, e.service.Spec.HealthCheckNodePort =
			corev1.ServiceExternalTrafficPolicyLocal, 32001
		e.service.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
	}},
	"spec.publishNotReadyAddresses": {spec(func(s *corev1.ServiceSpec) { s.PublishNotReadyAddresses = true })},
	"spec.sessionAffinity":          {affine(10800)},
	"spec.sessionAffinityConfig":    {affine(1)},
	"spec.ipFamilies": {spec(func(s *corev1.ServiceSpec) {
		s.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	})},
	"spec.ipFamilyPolicy": {spec(func(s *corev1.ServiceSpec) {
		s.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	})},
	"spec.clusterIP":  {spec(func(s *corev1.ServiceSpec) { s.ClusterIP = "192.0.2.5" })},
	"spec.clusterIPs": {spec(func(s *corev1.ServiceSpec) { s.ClusterIPs = []string{"192.0.2.5"} })},
	"spec.externalIPs": {spec(func(s *corev1.ServiceSpec) {
		s.ExternalIPs = []string{"192.0.2.5", "198.51.100.5"}
	})},
	"spec.ports": {spec(func(s *corev1.ServiceSpec) {
		for port := range int32(20_000) {
			s.Ports = append(s.Ports, corev1.ServicePort{Name: fmt.Sprint("p", port), Port: port + 1000})
		}
	}), spec(func(s *corev1.ServiceSpec) { s.Ports = nil })},
	"status.loadBalancer": {func(e *tenant) {
		e.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.5"}, {IP: "198.51.100.5"},
			{Hostname: "x"}}
	}},
	"status.conditions": {func(e *tenant) {
		e.service.Status.Conditions = []metav1.Condition{{Type: cluster.AddressAssigned, Status: "True",
			Reason: "Assigned", Message: "has 192.0.2.5"}}
	}},

	"endpoints[].addresses": {
		func(e *tenant) { e.slice.Endpoints[0].Addresses = []string{"10.244.1.1", "10.0.0.11", "127.0.0.1"} },
		func(e *tenant) { e.slice.Endpoints[0].Addresses = []string{victims[0]} },
		func(e *tenant) {
			for i := range 70_000 {
				e.slice.Endpoints = append(e.slice.Endpoints,
					discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.3.%d.%d", i/256%256, i%256)}})
			}
		}},
	"endpoints[].nodeName":   {func(e *tenant) { e.slice.Endpoints[0].NodeName = new("n1") }},
	"endpoints[].conditions": {func(e *tenant) { e.slice.Endpoints[0].Conditions.Ready = new(false) }},
	"endpoints[].hints": {func(e *tenant) {
		e.slice.Endpoints[0].Hints = &discoveryv1.EndpointHints{
			ForNodes: []discoveryv1.ForNode{{Name: "n1"}}, ForZones: []discoveryv1.ForZone{{Name: "a"}},
		}
	}},
	"addressType": {func(e *tenant) { e.slice.AddressType = discoveryv1.AddressTypeIPv6 }},
	"ports": {func(e *tenant) { e.slice.Ports[0].Port = new(int32(22)) }, func(e *tenant) {
		for i := range int32(16_000) {
			e.slice.Ports = append(e.slice.Ports,
				discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(i + 1000)})
			e.service.Spec.Ports = append(e.service.Spec.Ports,
				corev1.ServicePort{Name: fmt.Sprint("p", i), Port: i + 1000})
		}
		for i := range 1000 {
			e.slice.Endpoints = append(e.slice.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.3.%d.%d", i/256, i%256)}})
		}
	}},
	"kubernetes.io/service-name": {func(e *tenant) { e.slice.Labels[discoveryv1.LabelServiceName] = "victim" }},
}

// victims are the addresses of the attacked namespace; theirs are those of one Service.
var victims = []string{"192.0.2.5", "192.0.2.6", "198.51.100.5"}

const theirs = "192.0.2.5, 198.51.100.5"

func spec(edit func(*corev1.ServiceSpec)) func(*tenant) {
	return func(e *tenant) { edit(&e.service.Spec) }
}

func annotated(name string, values ...string) (all []func(*tenant)) {
	for _, v := range values {
		all = append(all, func(e *tenant) { e.service.Annotations = map[string]string{name: v} })
	}
	return all
}

// sharing asks for the victim's addresses by its key, with and without its namespace.
func sharing(key string) (all []func(*tenant)) {
	for _, namespaces := range []string{"", "shop", "shop, friend, evil"} {
		all = append(all, func(e *tenant) {
			e.service.Annotations = map[string]string{
				key: "k", "fanfare.io/load-balancer-ips": theirs, "fanfare.io/allow-shared-ip-namespaces": namespaces,
			}
			e.service.Spec.Ports[0].Port = 8443
		})
	}
	return all
}

func affine(seconds int32) func(*tenant) {
	return spec(func(s *corev1.ServiceSpec) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	})
}

// Whatever a user of one namespace writes, the addresses of another namespace's Service stay
// where they are and are forwarded and announced as before, on every node, also if the pools
// permit Services all that they can permit.
func TestTenantIsolation(t *testing.T) {
	for _, permissive := range []bool{false, true} {
		before := fate(t, newTenant(), permissive)
		for _, name := range slices.Sorted(maps.Keys(attacks)) {
			for i, attack := range attacks[name] {
				evil := newTenant()
				attack(evil)
				if d := gocmp.Diff(before, fate(t, evil, permissive)); d != "" {
					t.Errorf("%s, attack %d, permissive %t: the victim's addresses differ (-before +after):\n%s", name,
						i, permissive, d)
				}
			}
		}
	}
}

// newTenant returns the objects of namespace evil.
func newTenant() *tenant { return newTenantOf("evil", "evil", "192.0.2.2", "198.51.100.2") }

func newTenantOf(namespace, name string, addrs ...string) *tenant {
	s := clustertest.Service(name, addrs...)
	s.Namespace, s.UID, s.CreationTimestamp = namespace, types.UID(name), metav1.Unix(1000, 0)
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}
	slice := clustertest.EndpointSlice(name+"-1", name, "10.244.2.9", "10.244.3.9")
	slice.Namespace = namespace
	slice.Ports[0].Name = new("http")
	slice.Endpoints[0].NodeName, slice.Endpoints[1].NodeName = new("n2"), new("n3")
	return &tenant{s, slice}
}

// fate is all that is decided about the victim's addresses: their assignments, with the reasons,
// and on each node the rules, routes and owners.
func fate(t *testing.T, evil *tenant, permissive bool) []string {
	t.Helper()
	snap := cluster.Parse(append(tenantWorld(permissive), evil.service, evil.slice)...)
	var lines []string
	assignments, reasons := ipam.NewAllocator(snap, ipam.Settled).Allocate(time.Time{})
	for _, a := range assignments {
		if slices.Contains(victims, a.Addr.String()) || a.Pool == "restricted" { // by any Service
			lines = append(lines, fmt.Sprint(a.Addr, " ", a.Service))
		}
	}
	for _, r := range reasons {
		if r.Service.Namespace == "shop" {
			lines = append(lines, r.String())
		}
	}
	read := ipam.NewReader(unchanging{snap}).Snapshot()
	for _, node := range []string{"n1", "n2", "n3"} {
		lines = append(lines, fateOn(plan.Decide(plan.Config{Node: node}, read), node)...)
	}
	return lines
}

func fateOn(d *plan.Desired, node string) (lines []string) {
	for a := range d.Addresses.All() {
		if !slices.ContainsFunc(a.Services, func(n cluster.Name) bool { return n.Namespace == "shop" }) {
			continue
		}
		lines = append(lines, fmt.Sprint(node, " ", a.Addr, " of ", a.Services, ": ", a.VIP, " owner ", a.Owner,
			" announce ", a.Announce))
		for r := range d.BGP.Routes.All() { // also the aggregates, which are made of all addresses
			if r.Prefix.Contains(a.Addr) {
				lines = append(lines, fmt.Sprint(node, " ", r))
			}
		}
		for _, r := range d.ReasonsOf(a) {
			lines = append(lines, node+" "+r.String())
		}
	}
	for _, c := range d.Checks {
		if c.Namespace == "shop" {
			lines = append(lines, fmt.Sprint(node, " ", c))
		}
	}
	return lines
}

// unchanging is a Source with one snapshot.
type unchanging struct{ snap *cluster.Snapshot }

func (s unchanging) Snapshot() *cluster.Snapshot { return s.snap }
func (s unchanging) Changed() <-chan struct{}    { return nil }

// tenantWorld is a cluster without the attacker: pools that are announced as an aggregate and
// over Layer 2, and one that the attacker may not use.
func tenantWorld(permissive bool) (objects []runtime.Object) {
	victim := newTenantOf("shop", "victim", "192.0.2.5", "198.51.100.5")
	victim.service.Annotations = map[string]string{
		"fanfare.io/load-balancer-ips": theirs, "fanfare.io/allow-shared-ip": "k",
		"fanfare.io/allow-shared-ip-namespaces": "friend",
	}
	victim.service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	victim.slice.Endpoints[0].Addresses = []string{"10.244.1.1"}
	victim.slice.Endpoints[0].NodeName = new("n1")
	local := newTenantOf("shop", "local", "192.0.2.6")
	local.service.Spec.ExternalTrafficPolicy, local.service.Spec.HealthCheckNodePort =
		corev1.ServiceExternalTrafficPolicyLocal, 32001
	local.service.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
	for name, addrs := range map[string]string{
		"lan": "192.0.2.0/28", "wire": "198.51.100.0/28", "restricted": "203.0.113.0/28",
	} {
		pool := clustertest.Pool(name, addrs)
		pool.Spec.Announce = "Advertised"
		if name == "restricted" {
			pool.Spec.Namespaces, pool.Spec.Announce = []string{"shop"}, "BGP"
		}
		if pool.Spec.AllowL2Node = permissive; permissive {
			pool.Spec.AllowedServiceCommunities = []string{"blackhole", "no-advertise", "64500:1", "64500:1:2"}
		}
		objects = append(objects, pool)
	}
	aggregate, some, wire := clustertest.Advertisement("aggregate", 24), clustertest.Advertisement("some", 32),
		&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "wire"}}
	aggregate.Spec.Pools, some.Spec.Pools, wire.Spec.Pools = []string{"lan"}, []string{"lan"}, []string{"wire"}
	some.Spec.ServiceSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"tier": "gold"}}
	some.Spec.Communities = []string{"64500:9"}
	for i, node := range []string{"n1", "n2", "n3"} {
		n := clustertest.Node(node)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: fmt.Sprintf("10.0.0.1%d", i+1)}}
		objects = append(objects, n)
	}
	for addr, holder := range map[string][2]string{
		"192.0.2.5": {"shop", "victim"}, "198.51.100.5": {"shop", "victim"}, "192.0.2.6": {"shop", "local"},
		"192.0.2.2": {"evil", "evil"}, "198.51.100.2": {"evil", "evil"},
	} {
		c := clustertest.Claim(addr, holder[1])
		c.Spec.Holders[0].Namespace = holder[0]
		objects = append(objects, c)
	}
	return append(objects, victim.service, victim.slice, local.service, local.slice, aggregate, some, wire,
		clustertest.Peer("tor", "10.0.0.1"), clustertest.Namespace("shop", "a"), clustertest.Namespace("evil", "b"))
}
