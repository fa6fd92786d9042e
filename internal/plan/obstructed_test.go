package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// obstructedWorld has one Service for each kind of endpoint that a node n1 can forward to. Its name
// and its addresses say which: pods of n1 or n2, the hosts n1 and n2.
const obstructedWorld = `
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: "fd00::1"}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24, "2001:db8::/120"]}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor}
spec: {peerAddress: 10.0.0.254, peerASN: 65000, myASN: 65001, }
`

func obstructedService(name, policy, family, vip string, endpoints ...string) string {
	ipFamily, text := "IPv4", ""
	if family == "6" {
		ipFamily = "IPv6"
	}
	for _, e := range endpoints {
		node, addr, _ := strings.Cut(e, " ")
		text += fmt.Sprintf("- {addresses: [%q], nodeName: %s, conditions: {ready: true}}\n", addr, node)
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %[1]s}
spec: {type: LoadBalancer, externalTrafficPolicy: %[2]s, ipFamilies: [%[3]s], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: %[4]q}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{port: 80}]
endpoints:
%[5]s`, name, policy, ipFamily, vip, text)
}

// Only addresses whose flows certainly fail are withheld: by family, and by where the endpoints
// are. Flows to a process of this node are not forwarded.
func TestObstructedAddresses(t *testing.T) {
	world := obstructedWorld +
		obstructedService("local-pod", "Local", "4", "192.0.2.1", "n1 10.244.1.5", "n2 10.244.2.5") +
		obstructedService("local-host", "Local", "4", "192.0.2.2", "n1 10.0.0.1", "n2 10.0.0.2") +
		obstructedService("local-both", "Local", "4", "192.0.2.3", "n1 10.0.0.1", "n1 10.244.1.5") +
		obstructedService("cluster-here", "Cluster", "4", "192.0.2.4", "n1 10.244.1.5") +
		obstructedService("cluster-there", "Cluster", "4", "192.0.2.5", "n2 10.244.2.5") +
		obstructedService("cluster-both", "Cluster", "4", "192.0.2.6", "n1 10.244.1.5", "n2 10.244.2.5") +
		obstructedService("cluster-host", "Cluster", "4", "192.0.2.7", "n1 10.0.0.1") +
		obstructedService("cluster-hosts", "Cluster", "4", "192.0.2.8", "n1 10.0.0.1", "n2 10.0.0.2") +
		obstructedService("six", "Cluster", "6", "2001:db8::1", "n1 fd00:1::5") +
		obstructedService("six-host", "Cluster", "6", "2001:db8::2", "n1 fd00::1")
	const all = "1 2 3 4 5 6 7 8 ::1 ::2"
	for _, tt := range []struct {
		what  string
		flows obstacle.Obstacle
		want  string // the ends of announced addresses
	}{
		{"nothing", obstacle.Obstacle{}, all},
		{"ip_forward=0", obstacle.Obstacle{Blocks: obstacle.FlowsTo(0, obstacle.ToPods) |
			obstacle.FlowsTo(0, obstacle.ToOtherNodes)},
			"2 7 ::1 ::2"},
		{"IPv6 forwarding=0", obstacle.Obstacle{Blocks: obstacle.FlowsTo(1, obstacle.ToPods) |
			obstacle.FlowsTo(1, obstacle.ToOtherNodes)}, "1 2 3 4 5 6 7 8 ::2"},
		{"to pods of this node", obstacle.Obstacle{Blocks: obstacle.FlowsTo(0, obstacle.ToPods)}, "2 5 7 8 ::1 ::2"},
		{"to other nodes", obstacle.Obstacle{Blocks: obstacle.FlowsTo(0, obstacle.ToOtherNodes)}, "1 2 3 4 7 ::1 ::2"},
		{"to this node's processes", obstacle.Obstacle{Blocks: obstacle.FlowsTo(0, obstacle.ToThisNode)},
			"1 4 5 6 ::1 ::2"},
	} {
		tt.flows.Message = "the kernel drops it: do this"
		snap := plantest.Snapshot(t, []byte(world))
		decider := NewDecider(Config{Node: "n1"})
		before := decider.Decide(snap)
		decider.Config.Blockade = obstacle.NewBlockade(tt.flows)
		d := decider.Decide(snap)
		var got []string
		for a := range d.Routed.All() {
			got = append(got, strings.TrimPrefix(strings.TrimPrefix(a.String(), "192.0.2."), "2001:db8"))
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: announced %q, want %q", tt.what, text, tt.want)
		}
		for i, a := range d.Addresses.Slice() {
			if !a.VIP.Equal(before.Addresses.At(i).VIP) {
				t.Errorf("%s: %s is forwarded otherwise", tt.what, a.Addr)
			}
			withheld := !sortedset.HasAddr(d.Routed, a.Addr)
			has := slices.ContainsFunc(d.Reasons(), func(r cluster.Reason) bool {
				return r.VIP == a.Addr && r.Protocol == "bgp" && r.Code == cluster.Obstructed &&
					r.Message == "not announced: the kernel drops it: do this"
			})
			if has != withheld {
				t.Errorf("%s: %s: %s", tt.what, a.Addr, d.Why(a.Addr, "bgp"))
			}
		}
		decider.Config.Blockade = nil
		if again := decider.Decide(snap); again.String() != before.String() {
			t.Errorf("%s: at its end %s", tt.what, again)
		}
	}
}

// Over Layer 2 the owner does not answer for an address whose flows fail, and other nodes' owners
// stay owners.
func TestObstructedOwner(t *testing.T) {
	const l2 = `
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: L2, addresses: [192.0.2.0/24]}
`
	world := l2 + obstructedService("pod", "Local", "4", "192.0.2.1", "n1 10.244.1.5") +
		obstructedService("host", "Local", "4", "192.0.2.2", "n1 10.0.0.1")
	d := NewDecider(Config{Node: "n1"})
	snap := plantest.Snapshot(t, []byte(world))
	if got := d.Decide(snap).Answered.Slice(); len(got) != 2 {
		t.Fatalf("answers for %v: want both", got)
	}
	d.Config.Blockade = obstacle.NewBlockade(obstacle.Obstacle{
		Blocks: obstacle.FlowsTo(0, obstacle.ToPods) | obstacle.FlowsTo(0, obstacle.ToOtherNodes), Message: "dropped",
	})
	got := d.Decide(snap)
	if fmt.Sprint(got.Answered.Slice()) != "[192.0.2.2]" ||
		got.Why(netip.MustParseAddr("192.0.2.1"), "l2") != "shop/pod not announced: dropped" {
		t.Errorf("answers for %v; %v", got.Answered.Slice(), got.Reasons())
	}
	if b := d.Config.Blockade; !got.Unobstructed(b, netip.Addr.Is4) || got.Unobstructed(b, netip.Addr.Is6) {
		t.Error("an address of pods in the host's network needs no forwarding")
	}
}
