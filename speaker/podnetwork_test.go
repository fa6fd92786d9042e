package speaker

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

func TestPodInterfacePrefix(t *testing.T) {
	for _, tt := range []struct {
		want  string
		names []string
	}{
		{"", []string{"lo", "eth0", "cni0", "veth1234", "flannel.1"}},
		{"cali", []string{"lo", "eth0", "vxlan.calico", "cali0af3b2"}},
		{"", []string{"lo", "eth0", "vxlan.calico"}},
		{"lxc", []string{"lo", "cilium_net", "cilium_host", "lxc12ab"}},
		{"", []string{"lo", "cilium_host"}},
		{"", []string{"lo", "lxcbr0"}},
		{"eni", []string{"ens5", "eni7f3a"}},
		{"azv", []string{"eth0", "azv12"}},
		{"ovn-k8s-mp", []string{"eth0", "br-ex", "br-int", "genev_sys_6081", "ovn-k8s-mp0"}},
		{"", []string{"eth0", "br-ex", "br-int"}},
		{"tun0", []string{"eth0", "br0", "vxlan_sys_4789", "tun0"}},
		{"weave", []string{"eth0", "vethwe-bridge", "weave"}},
		{"", []string{"eth0", "tun0"}},
	} {
		if got := podInterfacePrefix(tt.names); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.names, got, tt.want)
		}
	}
}

// An EndpointSlice that names this node is evidence only if the kernel reaches the address by an
// interface that is no uplink. No interface counts as one of pods because of it.
func TestPodNetwork(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, other := nstest.Node(t), nstest.New(t, "other")
		for _, name := range []string{"eth0", "pod1", "pod2"} {
			nstest.Link(t, node, name, other, name)
		}
		node.Addr("eth0", "10.0.0.1/24")
		node.Route("0.0.0.0/0", "10.0.0.254", "")
		node.Bridge("br0", "pod1")
		node.Addr("br0", "10.32.0.1/12")
		node.Route("10.9.0.5/32", "", "pod2")
		node.Multipath("203.0.113.0/24", "10.0.0.253", "10.0.0.254")
		self := &cluster.Node{
			Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		}
		snap := func(endpoint string) *cluster.Snapshot {
			e := plantest.Endpoints("", 80, cluster.Endpoint{
				Node: "n1", Addr: netip.MustParseAddrPort(endpoint).Addr(),
			})
			return &cluster.Snapshot{
				Nodes: []*cluster.Node{self}, Services: cluster.ServiceSet(cluster.Service{
					Spec: &cluster.Spec{}, Endpoints: e,
				}),
			}
		}
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		find := func(endpoint string) plan.PodNetwork {
			w := newPodNetworkWatch(log)
			defer w.stop()
			return w.find(&plan.Config{Node: "n1", DetectPods: true}, snap(endpoint))
		}
		for _, tt := range []struct {
			what, endpoint string
			mismatch       bool
		}{
			{"of podCIDRs", "10.244.1.5:80", false},
			{"behind a bridge", "10.32.0.7:80", true},
			{"behind an interface of its own", "10.9.0.5:80", true},
			{"a machine on the node's link", "10.0.0.77:80", false},
			{"a machine behind the router", "198.51.100.1:80", false},
			{"a machine behind two routers", "203.0.113.1:80", false},
		} {
			if got := find(tt.endpoint); (got.Mismatch != plan.PodCIDRMismatch{}) != tt.mismatch ||
				got.InterfacePrefix != "" {
				t.Errorf("%s: %+v", tt.what, got)
			}
		}
		w := newPodNetworkWatch(log)
		defer w.stop()
		c := &plan.Config{Node: "n1", DetectPods: true}
		if got := w.find(c, snap("10.9.0.5:80")); got.InterfacePrefix != "" {
			t.Errorf("before there is a plug-in: %+v", got)
		}
		nstest.Link(t, node, "cali0af3", other, "pod3")
		select {
		case <-w.changed:
		case <-time.After(10 * time.Second):
			t.Fatal("the new interface was not noticed")
		}
		if got := w.find(c, snap("10.9.0.5:80")); got != (plan.PodNetwork{InterfacePrefix: "cali"}) {
			t.Errorf("once there is one: %+v", got)
		}
	})
}

// An EndpointSlice that names another node is evidence only if the kernel reaches the address by
// another node.
func TestPodOfAnotherNode(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, other := nstest.Node(t), nstest.New(t, "other")
		for _, name := range []string{"eth0", "pod1", "pod2"} {
			nstest.Link(t, node, name, other, name)
		}
		node.Addr("eth0", "10.0.0.1/24")
		node.Route("0.0.0.0/0", "10.0.0.254", "")
		node.Bridge("cni0", "pod1")
		node.Addr("cni0", "10.244.1.1/25")
		node.Route("10.244.1.200/32", "", "pod2")
		node.Route("10.244.1.201/32", "10.0.0.2", "")
		node.Route("10.244.1.202/32", "", "eth0")
		self := &cluster.Node{
			Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		}
		for _, tt := range []struct {
			what, addr string
			mismatch   bool
		}{
			{"a pod of this node on a bridge", "10.244.1.7", false},
			{"a pod of this node on an interface of its own", "10.244.1.200", false},
			{"a pod behind another node", "10.244.1.201", true},
			{"a pod on the uplink", "10.244.1.202", true},
		} {
			w := newPodNetworkWatch(slog.New(slog.DiscardHandler))
			e := plantest.Endpoints("", 80, cluster.Endpoint{Node: "n2", Addr: netip.MustParseAddr(tt.addr)})
			snap := &cluster.Snapshot{
				Nodes: []*cluster.Node{self}, Services: cluster.ServiceSet(cluster.Service{
					Spec: &cluster.Spec{}, Endpoints: e,
				}),
			}
			got := w.find(&plan.Config{Node: "n1", NodeCIDR: true}, snap)
			if (got.Mismatch != plan.PodCIDRMismatch{}) != tt.mismatch {
				t.Errorf("%s: %+v", tt.what, got)
			}
			w.stop()
		}
	})
}

// BenchmarkConfirmPod asks for an endpoint behind the router, on a node with few and with many
// routes: the ratio says whether all of them are read.
func BenchmarkConfirmPod(b *testing.B) {
	for _, routes := range []int{10, 2000} {
		b.Run(fmt.Sprint(routes), func(b *testing.B) {
			nstest.Isolate(b)
			node, other := nstest.Node(b), nstest.New(b, "other")
			nstest.Link(b, node, "eth0", other, "eth0")
			node.Addr("eth0", "10.0.0.1/24")
			node.Route("0.0.0.0/0", "10.0.0.254", "")
			for i := range routes {
				node.Route(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32).String(),
					"10.0.0.253", "")
			}
			for b.Loop() {
				if isLocal(netip.MustParseAddr("198.51.100.1"), nil) {
					b.Fatal("a machine behind the router is a pod")
				}
			}
		})
	}
}
