package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// serviceWith is a Service with ports as in "http:80 dns:53/UDP :443 a:80>8080 b:81>name".
func serviceWith(ports string) *corev1.Service {
	s := clustertest.Service("web")
	s.Spec.Ports = nil
	for word := range strings.FieldsSeq(ports) {
		word, target, _ := strings.Cut(word, ">")
		p := portsOf(word)[0]
		sp := corev1.ServicePort{Name: p.Name, Port: int32(p.Port), Protocol: p.Protocol}
		if target != "" {
			sp.TargetPort = intstr.Parse(target)
		}
		s.Spec.Ports = append(s.Spec.Ports, sp)
	}
	return s
}

// sliceWith is an EndpointSlice of that Service.
func sliceWith(name, ports string, addrs ...string) *discoveryv1.EndpointSlice {
	s := clustertest.EndpointSlice(name, "web", addrs...)
	s.Ports = nil
	for _, p := range portsOf(ports) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: &p.Name, Port: new(int32(p.Port)), Protocol: &p.Protocol,
		})
	}
	return s
}

func portsOf(text string) (ports []Port) {
	for word := range strings.FieldsSeq(text) {
		p := Port{Protocol: corev1.ProtocolTCP}
		word, protocol, _ := strings.Cut(word, "/")
		if protocol != "" {
			p.Protocol = corev1.Protocol(protocol)
		}
		name, number, _ := strings.Cut(word, ":")
		p.Name = name
		fmt.Sscan(number, &p.Port)
		ports = append(ports, p)
	}
	return ports
}

// served lists which endpoints each port of the Service has, in the order of its ports.
func served(b *Builder) string {
	s, _ := b.Snapshot().Services.Get(Name{"default", "web"})
	lines := make([]string, len(s.Ports))
	for _, is4 := range []bool{true, false} {
		for _, g := range s.PortGroups(is4) {
			for _, p := range g.Ports {
				for i := range g.Endpoints {
					lines[p.Index] += " " + p.Target(&g.Endpoints[i]).String()
				}
			}
		}
	}
	for i, p := range s.Ports {
		lines[i] = p.Name + lines[i]
	}
	return strings.Join(lines, ", ")
}

// A port of a slice serves the port of the Service with the same name and protocol, as with
// kube-proxy, whatever else the slice has.
func TestPortsMatchByNameAndProtocol(t *testing.T) {
	const pod = "10.244.0.1"
	for name, tt := range map[string]struct {
		service string
		slices  []*discoveryv1.EndpointSlice
		want    string
		others  string
	}{
		"the same": {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod)},
			"http 10.244.0.1:8080", "[]"},
		"unnamed": {":80", []*discoveryv1.EndpointSlice{sliceWith("a", ":8080", pod)}, " 10.244.0.1:8080",
			"[]"},
		"slice unnamed": {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", ":80", pod)}, "http",
			"[{ TCP 80 0}]"},
		"Service unnamed": {":80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:80", pod)}, "",
			"[{http TCP 80 0}]"},
		"TCP against UDP": {"dns:53/UDP", []*discoveryv1.EndpointSlice{sliceWith("a", "dns:53", pod)}, "dns",
			"[{dns TCP 53 0}]"},
		"both protocols": {"dns:53/UDP dns-tcp:53",
			[]*discoveryv1.EndpointSlice{sliceWith("a", "dns:5353/UDP dns-tcp:5354", pod)},
			"dns 10.244.0.1:5353, dns-tcp 10.244.0.1:5354", "[]"},
		"one of two": {"http:80 https:443",
			[]*discoveryv1.EndpointSlice{sliceWith("a", "http:8080 tls:8443", pod)}, "http 10.244.0.1:8080, https",
			"[{tls TCP 8443 0}]"},
		"a slice for each": {"http:80 https:443",
			[]*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod), sliceWith("b", "https:8443", "10.244.0.2")},
			"http 10.244.0.1:8080, https 10.244.0.2:8443", "[]"},
		"other numbers": {"http:80 https:443",
			[]*discoveryv1.EndpointSlice{sliceWith("a", "http:8080 https:8443", pod),
				sliceWith("b", "http:8081 https:8443", "10.244.0.2")},
			"http 10.244.0.1:8080 10.244.0.2:8081, https 10.244.0.1:8443 10.244.0.2:8443", "[]"},
		"in two slices": {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod),
			sliceWith("b", "http:8080", pod)}, "http 10.244.0.1:8080", "[]"},
		"in two, and moved": {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod),
			sliceWith("b", "http:8080 https:8443", pod)}, "http 10.244.0.1:8080", "[{https TCP 8443 0}]"},
	} {
		for range 2 { // in any order
			b := NewBuilder()
			for _, s := range tt.slices {
				b.Set(s, "")
			}
			b.Set(serviceWith(tt.service), "")
			if got := served(b); got != tt.want {
				t.Errorf("%s: got %q, want %q", name, got, tt.want)
			}
			if got := fmt.Sprint(b.Snapshot().Services.At(0).Endpoints.Others); got != tt.others {
				t.Errorf("%s: others %s, want %s", name, got, tt.others)
			}
			slices.Reverse(tt.slices)
		}
	}
}

// While the controller moves an endpoint to another slice, it may be in both: the more ready entry
// counts, also if the slices have different ports.
func TestMoreReadyEntryCounts(t *testing.T) {
	for _, ports := range []string{"http:8080", "http:8080 https:8443"} {
		b := NewBuilder()
		b.Set(serviceWith("http:80 https:443"), "")
		old, now := sliceWith("a", "http:8080", "10.244.0.1"), sliceWith("b", ports, "10.244.0.1")
		old.Endpoints[0].Conditions.Ready = new(false)
		b.Set(old, "")
		b.Set(now, "")
		s := b.Snapshot().Services.At(0)
		if got, want := served(b), "http 10.244.0.1:8080"; !strings.HasPrefix(got, want+", https") {
			t.Errorf("%s: got %q, want %q", ports, got, want)
		}
		for _, g := range s.PortGroups(true) {
			if !g.Endpoints[0].Ready {
				t.Errorf("%s: %+v", ports, g)
			}
		}
	}
}

// managed is an EndpointSlice of Kubernetes' own controller.
func managed(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Labels[discoveryv1.LabelManagedBy] = sliceController
	return s
}

// A port that is renamed keeps its endpoints, whether its Service or its slices come first, and
// whatever the speaker has seen before.
func TestRenamedPortKeepsEndpoints(t *testing.T) {
	const pod = "10.244.0.1"
	for name, tt := range map[string]struct {
		service, slice string
		want           string // with Kubernetes' own slice
		strict         string // with any other slice
	}{
		"a number":             {"web:80>8080", "http:8080", "web 10.244.0.1:8080", "web"},
		"a number, by default": {"web:80", "http:80", "web 10.244.0.1:80", "web"},
		"a name":               {"web:80>pod", "http:8080", "web 10.244.0.1:8080", "web"},
		"from no name":         {"web:80>pod", ":8080", "web 10.244.0.1:8080", "web"},
		"to no name":           {":80>8080", "http:8080", " 10.244.0.1:8080", ""},
		"another number":       {"web:80>9090", "http:8080", "web", "web"},
		"another protocol": {"web:80>8080/UDP web-tcp:81>pod", "http:8080/UDP", "web, web-tcp",
			"web, web-tcp"},
		"one of two": {"web:80>pod https:443>8443", "http:8080 https:8443",
			"web 10.244.0.1:8080, https 10.244.0.1:8443", "web, https 10.244.0.1:8443"},
		"two by numbers": {"web:80>8080 tls:443>8443", "http:8080 https:8443",
			"web 10.244.0.1:8080, tls 10.244.0.1:8443", "web, tls"},
		"two by a number and a name": {"web:80>pod tls:443>8443", "http:8080 https:8443",
			"web 10.244.0.1:8080, tls 10.244.0.1:8443", "web, tls"},
		"two by names": {"web:80>a tls:443>b", "http:8080 https:8443", "web, tls", "web, tls"},
		"two with one number": {"web:80>8080 site:81>8080", "a:8080 b:8080",
			"web 10.244.0.1:8080, site 10.244.0.1:8080", "web, site"},
		"one that pods lack, too":     {"web:80>a debug:81>b", "http:8080", "web, debug", "web, debug"},
		"a name whose number changed": {"web:80>9090 debug:81>b", "http:8080", "web, debug", "web, debug"},
		"swapped": {"a:80>8081 b:81>8080", "a:8080 b:8081", "a 10.244.0.1:8080, b 10.244.0.1:8081",
			"a 10.244.0.1:8080, b 10.244.0.1:8081"},
		"renamed to one that is gone": {"b:80>8080", "a:8080 b:8081", "b 10.244.0.1:8081", "b 10.244.0.1:8081"},
		"new, and one is removed": {"web:80>8080 new:81>9090", "web:8080 old:8081", "web 10.244.0.1:8080, new",
			"web 10.244.0.1:8080, new"},
	} {
		for _, serviceFirst := range []bool{true, false} {
			for _, own := range []bool{true, false} {
				b := NewBuilder()
				s, want := sliceWith("a", tt.slice, pod), tt.strict
				if own {
					s, want = managed(s), tt.want
				}
				if serviceFirst {
					b.Set(serviceWith(tt.service), "")
					b.Snapshot()
				}
				b.Set(s, "")
				b.Set(serviceWith(tt.service), "")
				if got := served(b); got != want {
					t.Errorf("%s, of Kubernetes %v: got %q, want %q", name, own, got, want)
				}
			}
		}
	}
}

// A rename reaches the Service and its slices one after another, in any order. Everything is served
// in each moment between, as for a speaker that starts then.
func TestRenameInAnyOrder(t *testing.T) {
	for _, target := range []string{"8080", "pod"} {
		was, now := func(b *Builder) {
			b.Set(serviceWith("http:80>"+target), "")
		}, func(b *Builder) { b.Set(serviceWith("web:80>"+target), "") }
		slice := func(name, port, addr string) func(*Builder) {
			return func(b *Builder) { b.Set(managed(sliceWith(name, port+":8080", addr)), "") }
		}
		before := []func(*Builder){was, slice("a", "http", "10.244.0.1"), slice("b", "http", "10.244.0.2")}
		after := []func(*Builder){now, slice("a", "web", "10.244.0.1"), slice("b", "web", "10.244.0.2")}
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			b, objects := NewBuilder(), slices.Clone(before)
			for _, set := range objects {
				set(b)
			}
			for _, i := range order {
				objects[i] = after[i]
				after[i](b)
				started := NewBuilder()
				for _, set := range objects {
					set(started)
				}
				for _, b := range []*Builder{b, started} {
					if got, want := served(b), " 10.244.0.1:8080 10.244.0.2:8080"; !strings.HasSuffix(got, want) {
						t.Errorf("target %s, order %v, after %d: got %q", target, order, i, got)
					}
				}
			}
			if e := b.Snapshot().Services.At(0).Endpoints; len(e.Renamed) != 0 {
				t.Errorf("renamed at the end: %v", e.Renamed)
			}
		}
	}
}

// Slices that only look like renamed ones take memory in proportion to themselves.
func TestSlicesOfManyRenamedPortsAreSmall(t *testing.T) {
	var ports strings.Builder
	for i := range maxSlicePorts {
		fmt.Fprintf(&ports, "p%d:%d>8080 ", i, i+1)
	}
	b := NewBuilder()
	b.Set(serviceWith(ports.String()), "")
	for i := range 1000 {
		b.Set(managed(sliceWith(fmt.Sprint(i), "other:8080", "10.244.0.1")), "")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := b.Snapshot()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 10<<20 {
		t.Errorf("%d bytes", got)
	}
	if got := s.Services.At(0).Endpoints.Targets; got != 1000 {
		t.Errorf("%d targets", got)
	}
}

// An address for Services is no endpoint, whether its pool comes before the endpoint or after it.
func TestAddressesForServicesAreNoEndpoints(t *testing.T) {
	b := NewBuilder()
	b.Set(serviceWith("http:80"), "")
	b.Set(sliceWith("a", "http:80", "192.0.2.1", "10.244.0.1", "192.0.2.11"), "")
	step := func(what, want, refused string) {
		t.Helper()
		if got := served(b); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
		if got := fmt.Sprint(b.Snapshot().Services.At(0).Endpoints.Refused); got != refused {
			t.Errorf("%s: refused %s, want %s", what, got, refused)
		}
	}
	step("no pool", "http 10.244.0.1:80 192.0.2.1:80 192.0.2.11:80", "[]")
	b.Set(clustertest.Pool("lan", "192.0.2.0/24"), "")
	step("a pool", "http 10.244.0.1:80", "[192.0.2.1 192.0.2.11]")
	n := clustertest.Node("n1")
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.11"}}
	b.Set(n, "")
	step("a node in the pool", "http 10.244.0.1:80 192.0.2.11:80", "[192.0.2.1]")
	b.Set(clustertest.Claim("192.0.2.1", "other"), "")
	b.Delete(Key{"AddressPool", Name{Name: "lan"}})
	step("a claim without a pool", "http 10.244.0.1:80 192.0.2.11:80", "[192.0.2.1]")
	b.Set(sliceWith("a", "http:80", "10.244.0.1"), "")
	step("not listed", "http 10.244.0.1:80", "[]")
}

// The memory of slices is in proportion to their JSON, whatever they have: never the product of
// ports and endpoints. A slice with more ports than any Service can have is refused alone.
func TestHugeSlices(t *testing.T) {
	addrs := make([]string, 1000)
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}).String()
	}
	named := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "p%d:%d ", i, i+1)
		}
		return b.String()
	}
	for name, tt := range map[string]struct {
		service, slice string
		problem        bool
		targets        int
	}{
		"of no Service":              {"", named(maxSlicePorts), false, 0},
		"20,000 ports":               {"p7:80", named(20_000), true, 0},
		"of a Service with one port": {"p7:80", named(maxSlicePorts), false, 1000},
		"of a Service with 1,000":    {named(1000), named(maxSlicePorts), false, 1_000_000},
		"of a Service with as many":  {named(maxSlicePorts), named(maxSlicePorts), false, maxSlicePorts * 1000},
	} {
		b := NewBuilder()
		if tt.service != "" {
			b.Set(serviceWith(tt.service), "")
		}
		b.Snapshot()
		huge := sliceWith("a", tt.slice, addrs...)
		text, err := json.Marshal(huge)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		b.Set(huge, "")
		s := b.Snapshot()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 40*uint64(len(text)) {
			t.Errorf("%s: %d bytes of JSON took %d", name, len(text), got)
		}
		if got := len(s.Problems) > 0; got != tt.problem {
			t.Errorf("%s: problems %v", name, s.Problems)
		}
		if tt.service == "" {
			continue
		}
		e := s.Services.At(0).Endpoints
		if e.Targets != tt.targets || (len(e.Subsets) == 0) != (tt.targets > maxTargets || tt.targets == 0) {
			t.Errorf("%s: %d targets, %d subsets; want %d", name, e.Targets, len(e.Subsets), tt.targets)
		}
	}
}
