package speaker

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A node that forwards nothing of a family offers no interface for it, unless it has endpoints that
// need no forwarding.
func TestOfferWithoutForwarding(t *testing.T) {
	prefix := netip.MustParsePrefix
	all := []l2.Interface{
		{Name: "eth0", Prefixes: []netip.Prefix{prefix("10.0.0.0/24"), prefix("fd00::/64"), prefix("fe80::/64")}},
		{Name: "eth1", Prefixes: []netip.Prefix{prefix("10.0.1.0/24"), prefix("fe80::/64")}},
	}
	blocked := func(family int, to ...proxy.Destination) (o proxy.Obstacle) {
		o.Message = "dropped"
		for _, d := range to {
			if family == 0 {
				o.Blocks |= proxy.FlowsTo(0, d)
			} else {
				o.Blocks |= proxy.FlowsTo(1, d)
			}
		}
		return o
	}
	four, six := blocked(0, proxy.ToPods, proxy.ToOtherNodes), blocked(1, proxy.ToPods, proxy.ToOtherNodes)
	with := func(backend string) *plan.Desired {
		vip := &proxy.VIP{Addr: netip.MustParseAddr("192.0.2.1"), Frontends: []proxy.Frontend{{External: proxy.Target{Backends: []proxy.Backend{
			{Addr: netip.MustParseAddrPort(backend), Node: "n1"}}}}}}
		return &plan.Desired{Addresses: assignedSet(&plan.Address{Addr: vip.Addr, OverL2: true, VIP: vip}),
			Inputs: &plan.Inputs{Node: "n1", Self: &cluster.Node{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}
	}
	host, pod := with("10.0.0.1:80"), with("10.244.1.5:80")
	for _, tt := range []struct {
		what     string
		blockade *proxy.Blockade
		last     *plan.Desired
		want     string
	}{
		{"nothing", nil, nil, "eth0 [10.0.0.0/24 fd00::/64 fe80::/64] eth1 [10.0.1.0/24 fe80::/64] "},
		{"IPv4", proxy.NewBlockade(four), nil, "eth0 [fd00::/64 fe80::/64] "},
		{"IPv6", proxy.NewBlockade(six), pod, "eth0 [10.0.0.0/24] eth1 [10.0.1.0/24] "},
		{"both", proxy.NewBlockade(four, six), nil, ""},
		{"to pods of this node only", proxy.NewBlockade(blocked(0, proxy.ToPods)), nil, "eth0 [10.0.0.0/24 fd00::/64 fe80::/64] eth1 [10.0.1.0/24 fe80::/64] "},
		{"IPv4, to a pod", proxy.NewBlockade(four), pod, "eth0 [fd00::/64 fe80::/64] "},
		{"IPv4, but not to the host", proxy.NewBlockade(four), host, "eth0 [10.0.0.0/24 fd00::/64 fe80::/64] eth1 [10.0.1.0/24 fe80::/64] "},
		{"IPv6, and an IPv4 address of the host", proxy.NewBlockade(six), host, "eth0 [10.0.0.0/24] eth1 [10.0.1.0/24] "},
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
