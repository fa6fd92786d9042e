package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

func prefixes(text ...string) (all []netip.Prefix) {
	for _, p := range text {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// serviceAt is a Service with endpoints, each "node address".
func serviceAt(name string, endpoints ...string) cluster.Service {
	var list []cluster.Endpoint
	for _, text := range endpoints {
		node, addr, _ := strings.Cut(text, " ")
		list = append(list, cluster.Endpoint{Node: node, Addr: netip.MustParseAddr(addr)})
	}
	return cluster.Service{
		Spec:      &cluster.Spec{Name: cluster.Name{Namespace: "shop", Name: name}},
		Endpoints: plantest.Endpoints("", 80, list...),
	}
}

// A pod of this node outside of its podCIDRs, or of another node inside, shows that podCIDRs do
// not say which pods are on this node.
func TestPodCIDRMismatch(t *testing.T) {
	n1 := func(cidrs ...string) *cluster.Node {
		return &cluster.Node{
			Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
			PodCIDRs: prefixes(cidrs...),
		}
	}
	for _, tt := range []struct {
		what      string
		self      *cluster.Node
		endpoints []string
		want      string
	}{
		{"inside", n1("10.244.1.0/24"), []string{"n1 10.244.1.5", "n2 10.244.2.5"}, ""},
		{"both families", n1("10.244.1.0/24", "fd00:1::/64"), []string{"n1 10.244.1.5", "n1 fd00:1::5"}, ""},
		{"Calico's block", n1("10.244.1.0/24"), []string{"n1 10.244.1.5", "n1 10.244.77.5"}, "n1 10.244.77.5"},
		{"another node's block inside", n1("10.244.1.0/24"), []string{"n2 10.244.1.70"}, "n2 10.244.1.70"},
		{"of the other family", n1("10.244.1.0/24", "fd00:1::/64"), []string{"n1 fd00:2::5"}, "n1 fd00:2::5"},
		{"no podCIDRs", n1(), []string{"n1 10.0.7.5"}, "n1 10.0.7.5"},
		{"no podCIDRs, pods elsewhere", n1(), []string{"n2 10.0.7.5"}, ""},
		{"in the host's network", n1("10.244.1.0/24"), []string{"n1 10.0.0.1", "n1 fd00::1", "n2 10.0.0.2"}, ""},
		{"without a node", n1("10.244.1.0/24"), []string{" 198.51.100.1", " 10.244.1.9"}, ""},
		{"no Node", nil, []string{"n1 10.0.7.5"}, ""},
	} {
		var f PodCIDRMismatchFinder
		got := f.Find(tt.self, cluster.ServiceSet(cluster.Service{Spec: &cluster.Spec{}},
			serviceAt("web", tt.endpoints...)), func(PodCIDRMismatch) bool { return true })
		text := ""
		if got != (PodCIDRMismatch{}) {
			text = got.Node + " " + got.Addr.String()
		}
		if text != tt.want {
			t.Errorf("%s: %+v, want %q", tt.what, got, tt.want)
		}
	}
}

// Each Service is searched once. A mismatch ends with the endpoints that showed it, and other
// podCIDRs start a new search.
func TestPodCIDRMismatchFinderRemembers(t *testing.T) {
	self := &cluster.Node{Name: "n1", PodCIDRs: prefixes("10.244.1.0/24")}
	var f PodCIDRMismatchFinder
	var asked []string
	find := func(confirmed bool, services ...cluster.Service) string {
		asked = nil
		return f.Find(self, cluster.ServiceSet(services...), func(m PodCIDRMismatch) bool {
			asked = append(asked, m.Addr.String())
			return confirmed
		}).Node
	}
	expect := func(when, got, want string, wantAsked ...string) {
		t.Helper()
		if got != want || !slices.Equal(asked, wantAsked) {
			t.Errorf("%s: found %q, want %q; asked about %q, want %q", when, got, want, asked, wantAsked)
		}
	}
	vm, web := serviceAt("vm", "n1 192.168.9.9"), serviceAt("web", "n1 10.244.1.5")
	expect("a machine, not a pod", find(false, vm, web), "", "192.168.9.9")
	expect("nothing new", find(false, vm, web), "")
	moved, other := serviceAt("web", "n1 10.244.9.5"), serviceAt("api", "n1 10.244.8.8")
	expect("another endpoint", find(true, vm, moved), "n1", "10.244.9.5")
	expect("still there, and one more", find(true, vm, moved, other), "n1")
	expect("its endpoints changed", find(true, vm, web, other), "n1", "10.244.8.8")
	expect("its Service has gone", find(true, vm, web), "")
	expect("it is there again", find(true, vm, web, other), "n1", "10.244.8.8")
	self = &cluster.Node{Name: "n1", PodCIDRs: prefixes("10.244.0.0/16")}
	expect("other podCIDRs", find(false, vm, moved), "", "192.168.9.9")
	self = nil
	expect("no Node", find(true, vm, moved), "")
}

// However many mismatches a Service has, it costs few questions, and none again when Services come and go.
func TestPodCIDRMismatchesOfOneServiceAreBounded(t *testing.T) {
	self := &cluster.Node{Name: "n1", PodCIDRs: prefixes("10.244.1.0/24")}
	var f PodCIDRMismatchFinder
	find := func(services ...cluster.Service) (asked int) {
		f.Find(self, cluster.ServiceSet(services...), func(PodCIDRMismatch) bool { asked++; return false })
		return asked
	}
	named := func(name string, mismatches int) cluster.Service {
		return serviceAt(name, slices.Repeat([]string{"n1 192.168.9.9"}, mismatches)...)
	}
	var all []cluster.Service
	for i := range 40 {
		all = append(all, named(fmt.Sprintf("web-%02d", i), 1000))
	}
	for i, step := range []struct {
		what     string
		services []cluster.Service
		want     int
	}{
		{"first look", all, maxMismatchesOfSearch},
		{"second look", all, maxMismatchesOfSearch},
		{"the rest", all, 40*maxMismatchesOfService - 2*maxMismatchesOfSearch},
		{"nothing new", all, 0},
		{"a Service more", append([]cluster.Service{named("a", 1)}, all...), 1},
		{"half of them gone", all[20:], 0},
	} {
		if got := find(step.services...); got != step.want {
			t.Errorf("%d, %s: asked %d times, want %d", i, step.what, got, step.want)
		}
	}
}

func TestLocalClients(t *testing.T) {
	self := &cluster.Node{Name: "n1", PodCIDRs: prefixes("10.244.1.0/24", "fd00:1::/64")}
	mismatch := PodCIDRMismatch{netip.MustParseAddr("10.9.0.5"), "n1"}
	intruder := PodCIDRMismatch{netip.MustParseAddr("10.244.1.7"), "n2"}
	bare := &cluster.Node{Name: "n1"}
	for _, tt := range []struct {
		what    string
		c       Config
		self    *cluster.Node
		want    string // CIDRs, interface prefix, bridge
		problem string
	}{
		{"auto: podCIDRs", Config{DetectPods: true}, self, "[10.244.1.0/24 fd00:1::/64]  ", ""},
		{"auto: Calico", Config{DetectPods: true, Pods: PodNetwork{InterfacePrefix: "cali"}}, self, "[] cali ", ""},
		{"auto: an endpoint outside", Config{DetectPods: true, Pods: PodNetwork{Mismatch: mismatch}}, self,
			"[10.244.1.0/24 fd00:1::/64]  ", `Node n1: spec.podCIDRs "10.244.1.0/24, fd00:1::/64": 10.9.0.5 is a pod of this node and not one of these addresses, so it counts as a client from outside; if pods have`},
		{"auto: others' pods", Config{DetectPods: true, Pods: PodNetwork{Mismatch: intruder}}, self,
			"[10.244.1.0/24 fd00:1::/64]  ",
			"10.244.1.7 is a pod of node n2 and one of these addresses, so it counts as a pod of this node"},
		{"auto: no podCIDRs", Config{DetectPods: true, Pods: PodNetwork{Mismatch: mismatch}}, bare, "[]  ",
			"10.9.0.5 is a pod of this node"},
		{"auto and an interface", Config{DetectPods: true, DetectLocal: proxy.LocalClients{InterfacePrefix: "veth"},
			Pods: PodNetwork{Mismatch: mismatch}}, self, "[10.244.1.0/24 fd00:1::/64] veth ", ""},
		{"auto and another interface", Config{DetectPods: true,
			DetectLocal: proxy.LocalClients{InterfacePrefix: "veth"}, Pods: PodNetwork{InterfacePrefix: "cali"}}, self,
			"[] veth ", ""},
		{"auto: Calico, and an endpoint outside",
			Config{DetectPods: true, Pods: PodNetwork{InterfacePrefix: "cali", Mismatch: mismatch}}, self, "[] cali ",
			""},
		{"node-cidr", Config{NodeCIDR: true}, self, "[10.244.1.0/24 fd00:1::/64]  ", ""},
		{"node-cidr is wrong", Config{NodeCIDR: true, Pods: PodNetwork{Mismatch: mismatch}}, self,
			"[10.244.1.0/24 fd00:1::/64]  ", "10.9.0.5 is a pod of this node"},
		{"cidr", Config{DetectLocal: proxy.LocalClients{CIDRs: prefixes("10.9.0.0/16")}}, self, "[10.9.0.0/16]  ", ""},
		{"no Node", Config{DetectPods: true}, nil, "[]  ", ""},
	} {
		tt.c.Node = "n1"
		snap := &cluster.Snapshot{}
		if tt.self != nil {
			snap.Nodes = []*cluster.Node{tt.self}
		}
		v := newInputs(tt.c, snap)
		cidrs := []string{}
		for _, p := range v.clients.CIDRs {
			cidrs = append(cidrs, p.String())
		}
		got := "[" + strings.Join(cidrs, " ") + "] " + v.clients.InterfacePrefix + " " + v.clients.Bridge
		var problem string
		for _, p := range v.Problems() {
			problem += p.String()
		}
		if got != tt.want || !strings.Contains(problem, tt.problem) || (tt.problem == "") != (problem == "") {
			t.Errorf("%s: %q, want %q; problem %q, want %q", tt.what, got, tt.want, problem, tt.problem)
		}
		changed := tt.c
		changed.Pods.Mismatch.Node += "x"
		if !v.isCurrent(tt.c, snap) || v.isCurrent(changed, snap) {
			t.Errorf("%s: the Inputs do not follow the network of pods", tt.what)
		}
	}
}
