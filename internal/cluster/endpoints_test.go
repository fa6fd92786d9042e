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

	"github.com/fanfare-lb/fanfare/internal/clustertest"
)

// serviceWith is a Service with ports as in "http:80 dns:53/UDP :443".
func serviceWith(ports string) *corev1.Service {
	s := clustertest.Service("web")
	s.Spec.Ports = nil
	for _, p := range portsOf(ports) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: int32(p.Port), Protocol: p.Protocol})
	}
	return s
}

// sliceWith is an EndpointSlice of that Service.
func sliceWith(name, ports string, addrs ...string) *discoveryv1.EndpointSlice {
	s := clustertest.EndpointSlice(name, "web", addrs...)
	s.Ports = nil
	for _, p := range portsOf(ports) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: new(int32(p.Port)), Protocol: &p.Protocol})
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
		"the same":          {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod)}, "http 10.244.0.1:8080", "[]"},
		"unnamed":           {":80", []*discoveryv1.EndpointSlice{sliceWith("a", ":8080", pod)}, " 10.244.0.1:8080", "[]"},
		"slice unnamed":     {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", ":80", pod)}, "http", "[{ TCP 80}]"},
		"Service unnamed":   {":80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:80", pod)}, "", "[{http TCP 80}]"},
		"TCP against UDP":   {"dns:53/UDP", []*discoveryv1.EndpointSlice{sliceWith("a", "dns:53", pod)}, "dns", "[{dns TCP 53}]"},
		"both protocols":    {"dns:53/UDP dns-tcp:53", []*discoveryv1.EndpointSlice{sliceWith("a", "dns:5353/UDP dns-tcp:5354", pod)}, "dns 10.244.0.1:5353, dns-tcp 10.244.0.1:5354", "[]"},
		"one of two":        {"http:80 https:443", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080 tls:8443", pod)}, "http 10.244.0.1:8080, https", "[{tls TCP 8443}]"},
		"a slice for each":  {"http:80 https:443", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod), sliceWith("b", "https:8443", "10.244.0.2")}, "http 10.244.0.1:8080, https 10.244.0.2:8443", "[]"},
		"other numbers":     {"http:80 https:443", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080 https:8443", pod), sliceWith("b", "http:8081 https:8443", "10.244.0.2")}, "http 10.244.0.1:8080 10.244.0.2:8081, https 10.244.0.1:8443 10.244.0.2:8443", "[]"},
		"in two slices":     {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod), sliceWith("b", "http:8080", pod)}, "http 10.244.0.1:8080", "[]"},
		"in two, and moved": {"http:80", []*discoveryv1.EndpointSlice{sliceWith("a", "http:8080", pod), sliceWith("b", "http:8080 https:8443", pod)}, "http 10.244.0.1:8080", "[{https TCP 8443}]"},
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

// A port that is renamed keeps its endpoints until its slices have the new name, and no longer.
func TestRenamedPortKeepsEndpoints(t *testing.T) {
	const pod, serves = "10.244.0.1", " 10.244.0.1:8080"
	for name, tt := range map[string][]struct {
		service, slice string // empty: unchanged
		want           string
	}{
		"the slice follows":          {{"http:80", "http:8080", "http" + serves}, {"web:80", "", "web" + serves}, {"", "web:8080", "web" + serves}, {"", "http:8080", "web"}},
		"the slice follows at once":  {{"http:80", "http:8080", "http" + serves}, {"web:80", "web:8080", "web" + serves}, {"", "http:8080", "web"}},
		"twice before the slice":     {{"http:80", "http:8080", "http" + serves}, {"web:80", "", "web" + serves}, {"site:80", "", "site" + serves}, {"", "site:8080", "site" + serves}},
		"to no name and another":     {{":80", ":8080", serves}, {"http:80", "", "http" + serves}, {"http:80 https:443", "", "http" + serves + ", https"}, {"", "http:8080 https:8443", "http" + serves + ", https 10.244.0.1:8443"}},
		"and back":                   {{"http:80", "http:8080", "http" + serves}, {"web:80", "", "web" + serves}, {"http:80", "", "http" + serves}, {"web:80", "web:8080", "web" + serves}},
		"another number is new":      {{"http:80", "http:8080", "http" + serves}, {"web:81", "", "web"}},
		"another protocol is new":    {{"http:80", "http:8080", "http" + serves}, {"web:80/UDP", "", "web"}},
		"a name that another has":    {{"http:80 web:81", "http:8080 web:8081", "http 10.244.0.1:8080, web 10.244.0.1:8081"}, {"web:80", "", "web 10.244.0.1:8081"}},
		"the endpoints go meanwhile": {{"http:80", "http:8080", "http" + serves}, {"web:80", "", "web" + serves}, {"", "-", "web"}, {"", "http:8080", "web"}},
		"never named so":             {{"web:80", "http:8080", "web"}},
	} {
		b := NewBuilder()
		for i, step := range tt {
			if step.service != "" {
				b.Set(serviceWith(step.service), "")
			}
			switch step.slice {
			case "":
			case "-":
				b.Delete(Key{"EndpointSlice", Name{"default", "a"}})
			default:
				b.Set(sliceWith("a", step.slice, pod), "")
			}
			if got := served(b); got != step.want {
				t.Errorf("%s, step %d: got %q, want %q", name, i, got, step.want)
			}
			if step.service == "" {
				continue
			}
			// An update that changes no port, as of the status.
			again := serviceWith(step.service)
			again.Labels = map[string]string{"step": fmt.Sprint(i)}
			if b.Set(again, ""); served(b) != step.want {
				t.Errorf("%s, step %d: after a status update %q, want %q", name, i, served(b), step.want)
			}
		}
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
