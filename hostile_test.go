package fanfare

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Kubernetes' own limits of one object.
const (
	maxAnnotations = 256 << 10 // bytes of all annotations
	maxObject      = 1 << 20   // bytes; etcd takes 1.5 MiB, with the metadata
	maxEndpoints   = 1000      // of an EndpointSlice
	maxAddresses   = 100       // of an endpoint
	maxSlicePorts  = 20_000    // of an EndpointSlice
)

// maxima are the largest values that the API server accepts, by row of the table in
// docs/concepts/security.md. i is the number of the object, from 0.
var maxima = map[string]func(e *tenant, i int){
	"fanfare.io/load-balancer-ips":          filled("fanfare.io/load-balancer-ips", "198.18.255.1,"),
	"metallb.io/loadBalancerIPs":            filled("metallb.io/loadBalancerIPs", "2001:db8::1,"),
	"metallb.universe.tf/loadBalancerIPs":   filled("metallb.universe.tf/loadBalancerIPs", "x,"),
	"fanfare.io/address-pool":               filled("fanfare.io/address-pool", "lan,"),
	"metallb.io/address-pool":               filled("metallb.io/address-pool", "y,"),
	"metallb.universe.tf/address-pool":      filled("metallb.universe.tf/address-pool", "Z,"),
	"fanfare.io/allow-shared-ip":            filled("fanfare.io/allow-shared-ip", "k"),
	"metallb.io/allow-shared-ip":            filled("metallb.io/allow-shared-ip", "k "),
	"metallb.universe.tf/allow-shared-ip":   filled("metallb.universe.tf/allow-shared-ip", "k,"),
	"fanfare.io/allow-shared-ip-namespaces": filled("fanfare.io/allow-shared-ip-namespaces", "shop,"),
	"fanfare.io/reserve":                    filled("fanfare.io/reserve", "true"),
	"fanfare.io/bgp-communities":            wrongCommunities,
	"fanfare.io/l2-node":                    filled("fanfare.io/l2-node", "n1"),
	"fanfare.io/scheduler": func(e *tenant, _ int) {
		e.service.Annotations = map[string]string{"fanfare.io/scheduler": "maglev"}
	},
	"service.beta.kubernetes.io/load-balancer-source-ranges": filled(
		"service.beta.kubernetes.io/load-balancer-source-ranges", "203.0.113.0/24,"),
	"service.kubernetes.io/service-proxy-name": func(e *tenant, _ int) {
		e.service.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": strings.Repeat("x", 63)}
	},
	"metadata.labels": func(e *tenant, _ int) {
		e.service.Labels = map[string]string{}
		for i := range maxObject / 128 {
			e.service.Labels[fmt.Sprintf("%063d", i)] = fmt.Sprintf("%063d", i)
		}
	},
	"metadata.name": func(*tenant, int) {},
	"spec.loadBalancerIP": ofSpec(func(s *corev1.ServiceSpec) {
		s.LoadBalancerIP = strings.Repeat("9", maxAnnotations)
	}),
	"spec.type": ofSpec(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeExternalName }),
	"spec.loadBalancerClass": ofSpec(func(s *corev1.ServiceSpec) {
		s.LoadBalancerClass = new("example.com/" + strings.Repeat("x", 63))
	}),
	"spec.ports": func(e *tenant, _ int) {
		e.service.Spec.Ports, e.slice.Ports[0].Name = nil, new("p0")
		for port := range int32(16_384) {
			e.service.Spec.Ports = append(e.service.Spec.Ports,
				corev1.ServicePort{Name: fmt.Sprint("p", port), Port: port + 1})
		}
	},
	"spec.externalTrafficPolicy": local,
	"spec.healthCheckNodePort":   local,
	"spec.sessionAffinity":       func(e *tenant, _ int) { affine(86400)(e) },
	"spec.sessionAffinityConfig": func(e *tenant, _ int) { affine(1)(e) },
	"spec.loadBalancerSourceRanges": ofSpec(func(s *corev1.ServiceSpec) {
		for i := range maxObject / 20 {
			s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges,
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32).String())
		}
	}),
	"spec.internalTrafficPolicy": ofSpec(func(s *corev1.ServiceSpec) {
		s.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}),
	"spec.publishNotReadyAddresses": ofSpec(func(s *corev1.ServiceSpec) { s.PublishNotReadyAddresses = true }),
	"spec.ipFamilies": ofSpec(func(s *corev1.ServiceSpec) {
		s.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	}),
	"spec.ipFamilyPolicy": ofSpec(func(s *corev1.ServiceSpec) {
		s.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}),
	"spec.clusterIP":  ofSpec(func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.9" }),
	"spec.clusterIPs": ofSpec(func(s *corev1.ServiceSpec) { s.ClusterIPs = []string{"10.96.0.9", "2001:db8::9"} }),
	"spec.externalIPs": ofSpec(func(s *corev1.ServiceSpec) {
		for range maxObject / 16 {
			s.ExternalIPs = append(s.ExternalIPs, "198.18.255.1")
		}
	}),
	"status.loadBalancer": func(e *tenant, _ int) {
		for i := range 1000 {
			e.service.Status.LoadBalancer.Ingress = append(e.service.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: fmt.Sprintf("198.18.254.%d", i%256)})
		}
	},
	"status.conditions": func(e *tenant, _ int) { attacks["status.conditions"][0](e) },
	"endpoints[].addresses": func(e *tenant, _ int) {
		fillEndpoints(e, func(n *discoveryv1.Endpoint, i int) {
			for j := range maxAddresses {
				n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j + 1)}).
					String())
			}
		})
	},
	"endpoints[].nodeName": endpointsWith(func(n *discoveryv1.Endpoint, i int) {
		n.NodeName = new(fmt.Sprintf("%0253d", i))
	}),
	"endpoints[].conditions": endpointsWith(func(n *discoveryv1.Endpoint, _ int) {
		n.Conditions.Ready, n.Conditions.Serving, n.Conditions.Terminating = new(false), new(true), new(true)
	}),
	"endpoints[].hints": endpointsWith(func(n *discoveryv1.Endpoint, i int) {
		n.Hints = &discoveryv1.EndpointHints{}
		for j := range 8 {
			n.Hints.ForZones = append(n.Hints.ForZones, discoveryv1.ForZone{Name: fmt.Sprintf("%054d%d", i, j)})
			n.Hints.ForNodes = append(n.Hints.ForNodes, discoveryv1.ForNode{Name: fmt.Sprintf("%054d%d", i, j)})
		}
	}),
	"addressType": func(e *tenant, _ int) { e.slice.AddressType = discoveryv1.AddressTypeFQDN },
	"ports": func(e *tenant, _ int) {
		endpointsWith(func(*discoveryv1.Endpoint, int) {})(e, 0)
		e.slice.Ports = nil
		for port := range int32(maxSlicePorts) {
			e.slice.Ports = append(e.slice.Ports,
				discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", port)), Port: new(port + 1)})
		}
	},
	"kubernetes.io/service-name": func(e *tenant, _ int) {
		e.slice.Labels[discoveryv1.LabelServiceName] = strings.Repeat("x", 63)
	},
}

// filled makes an annotation as long as all annotations together may be.
func filled(name, part string) func(*tenant, int) {
	value := strings.Repeat(part, (maxAnnotations-len(name))/len(part))
	return func(e *tenant, _ int) { e.service.Annotations = map[string]string{name: value} }
}

// wrongCommunities has other mistakes in each Service.
func wrongCommunities(e *tenant, i int) {
	var all []string
	for j := range 25 {
		all = append(all, fmt.Sprintf("64500:wrong-%d-%d", i, j))
	}
	filled("fanfare.io/bgp-communities", strings.Join(all, ",")+",")(e, i)
}

func ofSpec(edit func(*corev1.ServiceSpec)) func(*tenant, int) {
	return func(e *tenant, _ int) { edit(&e.service.Spec) }
}

func local(e *tenant, i int) {
	e.service.Spec.ExternalTrafficPolicy, e.service.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal,
		int32(30000+i)
	e.service.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
}

func endpointsWith(edit func(n *discoveryv1.Endpoint, i int)) func(*tenant, int) {
	return func(e *tenant, _ int) {
		fillEndpoints(e, func(n *discoveryv1.Endpoint, i int) {
			n.Addresses = []string{netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).String()}
			edit(n, i)
		})
	}
}

// fillEndpoints makes the most endpoints that a slice can have.
func fillEndpoints(e *tenant, edit func(n *discoveryv1.Endpoint, i int)) {
	e.slice.Endpoints = make([]discoveryv1.Endpoint, maxEndpoints)
	for i := range e.slice.Endpoints {
		edit(&e.slice.Endpoints[i], i)
	}
}

// What a hostile namespace may cost: the CPU time by which it delays another one's change, the CPU
// time to read one of its objects, and the heap for each byte of its objects.
const (
	maxDelay     = 20 * time.Millisecond
	maxReading   = 20 * time.Millisecond
	heapPerInput = 1.5
	heapBase     = 128 << 20 // for 1,000 small objects, with their addresses and decisions
	hostile      = 1000      // objects of each kind
)

// Whatever a namespace fills its objects with, and however many it has, a change of another one's
// endpoints reaches the elements for the kernel as fast as without it, and the heap holds no more
// than its objects.
//
// The times are the process's CPU time, so that they do not depend on what else the machine does, with
// the garbage collector off.
func TestHostileTenant(t *testing.T) {
	if testing.Short() || raced {
		t.Skip("it reads gigabytes of objects, and measures CPU time and heap: hack/test.sh runs it " +
			"without the race detector")
	}
	for name := range maxima {
		if len(attacks[name]) == 0 {
			t.Errorf("maxima has %s, which is no row of the table", name)
		}
	}
	alone := newSpeakerPath(t).change(t)
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		if maxima[name] == nil {
			t.Errorf("maxima has no %s, which a row of the table has", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := newSpeakerPath(t)
			before := heap()
			size, reading := p.attack(t, name)
			p.pass()
			grown := heap() - before
			with := p.change(t)
			t.Logf("%d MiB of objects; reading one: %v; heap: %d MiB; change: %v, alone: %v", size>>20, reading,
				grown>>20, with, alone)
			if with > alone+maxDelay {
				t.Errorf("the victim's change takes %v of CPU time, and %v without the tenant", with, alone)
			}
			if reading > maxReading {
				t.Errorf("one object takes %v of CPU time to read", reading)
			}
			if most := int(heapPerInput*float64(size)) + heapBase; grown > most {
				t.Errorf("%d bytes of objects take %d bytes of heap, more than %d", size, grown, most)
			}
			if p.victim() == "" {
				t.Error("the victim's address is not forwarded")
			}
			runtime.KeepAlive(p)
		})
	}
}

// A speakerPath is a speaker from the objects that it reads to the elements for the kernel.
type speakerPath struct {
	builder *cluster.Builder
	reader  cluster.Source
	decider *plan.Decider
	have    *plan.Desired
	replies state.Replies              // of have
	slice   *discoveryv1.EndpointSlice // of the victim
	version int
}

// Snapshot and Changed make the builder a Source.
func (p *speakerPath) Snapshot() *cluster.Snapshot { return p.builder.Snapshot() }
func (p *speakerPath) Changed() <-chan struct{}    { return nil }

const victimAddress = "198.18.255.1"

// newSpeakerPath has a cluster with one Service.
func newSpeakerPath(t *testing.T) *speakerPath {
	p := &speakerPath{
		builder: cluster.NewBuilder(), decider: plan.NewDecider(plan.Config{Node: "n1"}), replies: state.Replies{},
	}
	p.reader = ipam.NewReader(p)
	v := newTenantOf("shop", "victim", victimAddress)
	p.slice = v.slice
	claim := clustertest.Claim(victimAddress, "victim")
	claim.Spec.Holders[0].Namespace = "shop"
	p.builder.Set(clustertest.Pool("lan", "198.18.0.0/16"), "")
	p.builder.Set(clustertest.Peer("tor", "10.0.0.254"), "")
	p.builder.Set(clustertest.Node("n1"), "")
	p.builder.Set(v.service, "")
	p.builder.Set(v.slice, "")
	p.builder.Set(claim, "")
	p.pass()
	if p.victim() == "" {
		t.Fatal("the victim is not forwarded")
	}
	return p
}

// pass brings all changes to the elements for the kernel, and returns their number.
func (p *speakerPath) pass() int {
	d := p.decider.Decide(p.reader.Snapshot())
	var had state.State
	if p.have != nil {
		had = p.have.Proxy
	}
	changes := state.DiffVIPs(had.VIPs, d.Proxy.VIPs)
	c := state.DiffStates(had, d.Proxy, changes, p.replies)
	for _, change := range changes {
		p.replies.Record(change)
	}
	p.have = d
	return len(c.Add) + len(c.Del)
}

// victim returns the endpoints of the victim, empty if it is not forwarded or not announced.
func (p *speakerPath) victim() string {
	a := p.have.Address(netip.MustParseAddr(victimAddress))
	if a == nil || !a.Announce || len(a.VIP.Frontends) != 1 {
		return ""
	}
	return fmt.Sprint(a.VIP.Frontends[0].External.Backends)
}

// change changes the victim's endpoints a few times, and returns the least CPU time of one change.
func (p *speakerPath) change(t *testing.T) time.Duration {
	least := time.Hour
	for range 5 {
		p.version++
		s := p.slice.DeepCopy()
		s.Endpoints[0].Addresses = []string{fmt.Sprintf("10.244.7.%d", p.version)}
		was := p.victim()
		took, n := cpu(func() { p.builder.Set(s, "") }), 0
		took += cpu(func() { n = p.pass() })
		if now := p.victim(); n == 0 || now == was || !strings.Contains(now, s.Endpoints[0].Addresses[0]) {
			t.Fatalf("%d elements change, and the victim is forwarded to %q", n, now)
		}
		least = min(least, took)
	}
	return least
}

// attack adds the objects of a hostile namespace, as an API server sends them. It returns their size
// as JSON, and the least CPU time to read one pair of a Service and an EndpointSlice.
func (p *speakerPath) attack(t *testing.T, row string) (size int, reading time.Duration) {
	full := newTenantOf("evil", "", "")
	maxima[row](full, 0)
	service, err1 := full.service.Marshal()
	slice, err2 := full.slice.Marshal()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	text, err := json.Marshal([]any{full.service, full.slice})
	if err != nil {
		t.Fatal(err)
	}
	reading = time.Hour
	for i := range hostile {
		e := &tenant{new(corev1.Service), new(discoveryv1.EndpointSlice)}
		if err := e.service.Unmarshal(service); err != nil {
			t.Fatal(err)
		}
		if err := e.slice.Unmarshal(slice); err != nil {
			t.Fatal(err)
		}
		size += len(text)
		e.rename(i)
		if varied[row] {
			maxima[row](e, i)
		}
		name, addr := e.service.Name, e.service.Status.LoadBalancer.Ingress[0].IP
		claim := clustertest.Claim(addr, name)
		claim.Spec.Holders[0].Namespace = "evil"
		p.builder.Set(claim, "")
		reading = min(reading, cpu(func() {
			p.builder.Set(e.service, "")
			p.builder.Set(e.slice, "")
		}))
		if reading > 10*maxReading {
			t.Fatalf("one object takes %v of CPU time to read", reading) // and the rest would take hours
		}
	}
	return size, reading
}

// rename makes copies of a tenant's objects other objects, with an address of their own.
func (e *tenant) rename(i int) {
	name := fmt.Sprintf("e%04d-%s", i, strings.Repeat("x", 57))
	addr := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String()
	e.service.Name, e.service.UID, e.slice.Name = name, types.UID(name), name+"-1"
	e.service.Status.LoadBalancer.Ingress[0].IP = addr
	if e.slice.Labels[discoveryv1.LabelServiceName] == "" {
		e.slice.Labels[discoveryv1.LabelServiceName] = name
	}
}

// varied are the rows with other values in each object.
var varied = map[string]bool{"fanfare.io/bgp-communities": true, "spec.healthCheckNodePort": true}

// cpu returns the CPU time of the process that f takes.
func cpu(f func()) time.Duration {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	began := cpuUsed()
	f()
	return cpuUsed() - began
}

func cpuUsed() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap returns the bytes of live objects.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
