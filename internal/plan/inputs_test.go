package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/l2"
)

// A peer that is the default gateway has a session with the current gateway: a change of the
// gateway changes only this session, and an unknown gateway is a problem.
func TestPeerByDefaultGateway(t *testing.T) {
	const world = plantest.TwoRouters + `---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: gw4}
spec: {defaultGateway: IPv4, peerASN: external, myASN: 65001}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: gw6}
spec: {defaultGateway: IPv6, peerASN: 65000, myASN: 65001}
`
	snap := plantest.Snapshot(t, []byte(world))
	decider := NewDecider(Config{Node: "n1"})
	addresses := func() string {
		var all []string
		for _, s := range decider.Decide(snap).BGP.Sessions {
			all = append(all, s.Name+" "+s.PeerAddress.String())
		}
		return strings.Join(all, ", ")
	}
	if got, want := addresses(), "tor1 10.0.0.1, tor2 10.0.0.2"; got != want {
		t.Errorf("without gateways: %s, want %s", got, want)
	}
	problems := decider.last.Inputs.Problems()
	if len(problems) != 2 || problems[0].String() !=
		`BGPPeer gw4: spec.defaultGateway "IPv4": no such gateway is known on node n1; give it a default route, or name the router by peerAddress` {
		t.Errorf("problems: %v", problems)
	}
	decider.Config.Gateways = Gateways{netip.MustParseAddr("10.0.0.254"), netip.MustParseAddr("fe80::1%eth0")}
	if got, want := addresses(), "gw4 10.0.0.254, gw6 fe80::1%eth0, tor1 10.0.0.1, tor2 10.0.0.2"; got != want {
		t.Errorf("with gateways: %s, want %s", got, want)
	}
	before := decider.last.BGP.Sessions
	decider.Config.Gateways.IPv4 = netip.MustParseAddr("10.0.0.253")
	addresses()
	after := decider.last.BGP.Sessions
	changed := slices.DeleteFunc(slices.Clone(after), func(s bgp.Session) bool { return slices.Contains(before, s) })
	if len(changed) != 1 || changed[0].Name != "gw4" || len(decider.last.Inputs.Problems()) != 0 {
		t.Errorf("with another gateway these change: %v", changed)
	}
}

// Which hosts on the link are nodes: hosts with a hardware address that a member reports. Only without
// members, hosts that the neighbour table has under a node's address, which any host can claim.
func TestHostsThatAreNodes(t *testing.T) {
	snap := plantest.Snapshot(t, []byte(strings.Replace(plantest.TwoRouters, "announce: BGP", "announce: L2", 1)+`---
apiVersion: v1
kind: Node
metadata: {name: n2, uid: uid-n2}
status: {addresses: [{type: InternalIP, address: 10.0.0.12}]}
`))
	members := plantest.Members("aa")
	members.Nodes[1].Interfaces = []cluster.Interface{{Name: "eth0", MAC: l2.MAC{2, 0, 0, 0, 0, 12}}}
	for _, tt := range []struct {
		what    string
		members *membership.Members
		want    string
	}{
		{"without members", nil, "[] [10.0.0.12]"},
		{"with members", members, "[02:00:00:00:00:0c] []"},
		{"with members whose hardware addresses have not arrived", plantest.Members("aa"), "[] []"},
	} {
		d := NewDecider(Config{Node: "n1", Members: tt.members}).Decide(snap)
		if got := fmt.Sprint(d.L2.Speakers, d.L2.Nodes); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
}

// A node without any interface of an L2Advertisement reports that in its plan and its status.
func TestUnknownInterfaceProblem(t *testing.T) {
	world := func(interfaces string) *cluster.Snapshot {
		return plantest.Snapshot(t, []byte(plantest.Advertised+
			"---\napiVersion: fanfare.io/v1alpha1\nkind: L2Advertisement\nmetadata: {name: lan}\nspec: {interfaces: ["+
			interfaces+"]}\n"))
	}
	here := []l2.Interface{{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	const want = `L2Advertisement lan: spec.interfaces "eht0": node n1 has no such interface in a subnet of a pool; correct the names, or exclude the node by nodeSelector`
	for _, tt := range []struct {
		named string
		have  []l2.Interface
		want  string
	}{
		{"eht0", here, want},
		{"eht0, eth0", here, ""},
		{"eth*", here, ""},
		{"eht0", nil, ""}, // of another node, whose interfaces are unknown
	} {
		d := Decide(Config{Node: "n1", Interfaces: tt.have}, world(tt.named))
		got := ""
		for _, p := range d.Inputs.Problems() {
			got += p.String()
		}
		if got != tt.want || tt.want != "" && !strings.Contains(d.String(), tt.want) {
			t.Errorf("%s on %v: %q, want %q\n%s", tt.named, tt.have, got, tt.want, d)
		}
	}
}
