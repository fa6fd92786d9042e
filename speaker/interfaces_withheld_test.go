package speaker

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// A node that forwards nothing of a family offers no interface for it, unless it has endpoints that
// need no forwarding.
func TestOfferWithoutForwarding(t *testing.T) {
	prefix := netip.MustParsePrefix
	all := []l2.Interface{
		{Name: "eth0", Prefixes: []netip.Prefix{prefix("10.0.0.0/24"), prefix("fd00::/64"), prefix("fe80::/64")}},
		{Name: "eth1", Prefixes: []netip.Prefix{prefix("10.0.1.0/24"), prefix("fe80::/64")}},
	}
	blocked := func(family int, to ...obstacle.Destination) (o obstacle.Obstacle) {
		o.Message = "dropped"
		for _, d := range to {
			if family == 0 {
				o.Blocks |= obstacle.FlowsTo(0, d)
			} else {
				o.Blocks |= obstacle.FlowsTo(1, d)
			}
		}
		return o
	}
	four, six := blocked(0, obstacle.ToPods, obstacle.ToOtherNodes), blocked(1, obstacle.ToPods, obstacle.ToOtherNodes)
	with := func(backend string) *plan.Desired {
		vip := &proxy.VIP{Addr: netip.MustParseAddr("192.0.2.1"),
			Frontends: []proxy.Frontend{{External: proxy.Target{Backends: []proxy.Backend{
				{Addr: netip.MustParseAddrPort(backend), Node: "n1"}}}}}}
		return &plan.Desired{Addresses: assignedSet(&plan.Address{Addr: vip.Addr, OverL2: true, VIP: vip}),
			Inputs: &plan.Inputs{
				Node: "n1", Self: &cluster.Node{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			}}
	}
	host, pod := with("10.0.0.1:80"), with("10.244.1.5:80")
	for _, tt := range []struct {
		what     string
		blockade *obstacle.Blockade
		last     *plan.Desired
		want     string
	}{
		{"nothing", nil, nil, "eth0 [10.0.0.0/24 fd00::/64 fe80::/64] eth1 [10.0.1.0/24 fe80::/64] "},
		{"IPv4", obstacle.NewBlockade(four), nil, "eth0 [fd00::/64 fe80::/64] "},
		{"IPv6", obstacle.NewBlockade(six), pod, "eth0 [10.0.0.0/24] eth1 [10.0.1.0/24] "},
		{"both", obstacle.NewBlockade(four, six), nil, ""},
		{"to pods of this node only", obstacle.NewBlockade(blocked(0, obstacle.ToPods)), nil,
			"eth0 [10.0.0.0/24 fd00::/64 fe80::/64] eth1 [10.0.1.0/24 fe80::/64] "},
		{"IPv4, to a pod", obstacle.NewBlockade(four), pod, "eth0 [fd00::/64 fe80::/64] "},
		{"IPv4, but not to the host", obstacle.NewBlockade(four), host,
			"eth0 [10.0.0.0/24 fd00::/64 fe80::/64] eth1 [10.0.1.0/24 fe80::/64] "},
		{"IPv6, and an IPv4 address of the host", obstacle.NewBlockade(six), host,
			"eth0 [10.0.0.0/24] eth1 [10.0.1.0/24] "},
	} {
		withheld := withheldFamilies(tt.blockade, tt.last)
		left := withoutFamilies(withheld, all)
		got := ""
		for _, i := range left {
			got += fmt.Sprintf("%s %v ", i.Name, i.Prefixes)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}
