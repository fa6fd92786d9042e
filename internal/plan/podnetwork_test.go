package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
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
	e := &cluster.Endpoints{}
	for _, text := range endpoints {
		node, addr, _ := strings.Cut(text, " ")
		e.List = append(e.List, cluster.Endpoint{Node: node, Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 80)})
	}
	return cluster.Service{Spec: &cluster.Spec{Name: cluster.Name{Namespace: "shop", Name: name}}, Endpoints: e}
}

// A pod of this node outside of its podCIDRs, or of another node inside, shows that podCIDRs do
// not say which pods are on this node.
func TestPodCIDRMismatch(t *testing.T) {
	n1 := func(cidrs ...string) *cluster.Node {
		return &cluster.Node{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, PodCIDRs: prefixes(cidrs...)}
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
		got := f.Find(tt.self, cluster.ServiceSet(cluster.Service{Spec: &cluster.Spec{}}, serviceAt("web", tt.endpoints...)), func(PodCIDRMismatch) (string, bool) { return "br0", true })
		text := ""
		if s := got.Mismatch; s != (PodCIDRMismatch{}) {
			text = s.Node + " " + s.Addr.String()
		}
		if text != tt.want || (text != "") != (got.Interface == "br0") {
			t.Errorf("%s: %+v, want %q", tt.what, got, tt.want)
		}
	}
}

// Each Service is looked at once, what was found stays while its pod goes, and other podCIDRs
// start a new search.
func TestPodCIDRMismatchFinderRemembers(t *testing.T) {
	self := &cluster.Node{Name: "n1", PodCIDRs: prefixes("10.244.1.0/24")}
	var f PodCIDRMismatchFinder
	var asked []string
	find := func(confirmed bool, services ...cluster.Service) string {
		asked = nil
		n := f.Find(self, cluster.ServiceSet(services...), func(s PodCIDRMismatch) (string, bool) {
			asked = append(asked, s.Addr.String())
			return "", confirmed
		})
		return n.Mismatch.Node
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
	moved := serviceAt("web", "n1 10.244.9.5")
	expect("another endpoint", find(true, vm, moved), "n1", "10.244.9.5")
	expect("gone", find(true, vm), "n1")
	self = &cluster.Node{Name: "n1", PodCIDRs: prefixes("10.244.0.0/16")}
	expect("other podCIDRs", find(false, vm, moved), "", "192.168.9.9")
}

// However many mismatches a Service has, it costs few questions, and none again when Services come and go.
func TestPodCIDRMismatchesOfOneServiceAreBounded(t *testing.T) {
	self := &cluster.Node{Name: "n1", PodCIDRs: prefixes("10.244.1.0/24")}
	var f PodCIDRMismatchFinder
	find := func(services ...cluster.Service) (asked int) {
		f.Find(self, cluster.ServiceSet(services...), func(PodCIDRMismatch) (string, bool) { asked++; return "", false })
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
		{"auto: a bridge", Config{DetectPods: true, Pods: PodNetwork{Mismatch: mismatch, Interface: "weave"}}, self, "[]  weave", ""},
		{"auto: unknown", Config{DetectPods: true, Pods: PodNetwork{Mismatch: mismatch}}, self, "[]  ",
			`Node n1: spec.podCIDRs "10.244.1.0/24, fd00:1::/64": 10.9.0.5 is a pod of this node and not one of these addresses, so pods of this node count as clients from outside; start the speaker with`},
		{"auto: others' pods", Config{DetectPods: true, Pods: PodNetwork{Mismatch: intruder}}, self, "[]  ", "10.244.1.7 is a pod of node n2 and one of these addresses, so pods"},
		{"auto: no podCIDRs", Config{DetectPods: true, Pods: PodNetwork{Mismatch: mismatch}}, bare, "[]  ", "10.9.0.5 is a pod of this node"},
		{"auto and an interface", Config{DetectPods: true, DetectLocal: proxy.LocalClients{InterfacePrefix: "veth"}, Pods: PodNetwork{Mismatch: mismatch}}, self, "[] veth ", ""},
		{"auto and another interface", Config{DetectPods: true, DetectLocal: proxy.LocalClients{InterfacePrefix: "veth"}, Pods: PodNetwork{InterfacePrefix: "cali"}}, self, "[] veth ", ""},
		{"node-cidr", Config{NodeCIDR: true}, self, "[10.244.1.0/24 fd00:1::/64]  ", ""},
		{"node-cidr is wrong", Config{NodeCIDR: true, Pods: PodNetwork{Mismatch: mismatch}}, self, "[10.244.1.0/24 fd00:1::/64]  ", "and by --detect-local=node-cidr these addresses count as pods"},
		{"cidr", Config{DetectLocal: proxy.LocalClients{CIDRs: prefixes("10.9.0.0/16")}}, self, "[10.9.0.0/16]  ", ""},
		{"no Node", Config{DetectPods: true}, nil, "[]  ", ""},
	} {
		tt.c.Node = "n1"
		snap := &cluster.Snapshot{}
		if tt.self != nil {
			snap.Nodes = []*cluster.Node{tt.self}
		}
		v := newView(tt.c, snap)
		cidrs := []string{}
		for _, p := range v.clients.CIDRs {
			cidrs = append(cidrs, p.String())
		}
		got := "[" + strings.Join(cidrs, " ") + "] " + v.clients.InterfacePrefix + " " + v.clients.Bridge
		var problem string
		for _, p := range v.podNetworkProblems() {
			problem += p.String()
		}
		if got != tt.want || !strings.Contains(problem, tt.problem) || (tt.problem == "") != (problem == "") {
			t.Errorf("%s: %q, want %q; problem %q, want %q", tt.what, got, tt.want, problem, tt.problem)
		}
		changed := tt.c
		changed.Pods.Mismatch.Node += "x"
		if !v.isCurrent(tt.c, snap) || v.isCurrent(changed, snap) {
			t.Errorf("%s: the view does not follow the network of pods", tt.what)
		}
	}
}
