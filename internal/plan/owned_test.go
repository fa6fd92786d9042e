package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A pool of a whole subnet contains the nodes and the router, and perhaps addresses of another
// implementation: traffic to them must not be rejected like traffic to unused addresses.
func TestOwnedExcludesNodesAndRouters(t *testing.T) {
	pool := &cluster.Pool{
		Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.0-192.0.2.9")},
		Occupied: []cluster.Occupied{{Range: netipx.MustParseIPRange("192.0.2.1-192.0.2.1"), By: "BGPPeer tor1"},
			{Range: netipx.MustParseIPRange("192.0.2.4-192.0.2.7"), By: "the pods of Node n1"},
			{Range: netipx.MustParseIPRange("192.0.2.9-192.0.2.9"), By: "Service shop/web of another implementation",
				Foreign: true}},
	}
	if got, want := fmt.Sprint(ownedPrefixes([]*cluster.Pool{pool})),
		"[192.0.2.0/32 192.0.2.2/31 192.0.2.8/32]"; got != want {
		t.Errorf("owned %s, want %s", got, want)
	}
}

// A pool may contain addresses that another implementation serves by kube-proxy, as before a move from MetalLB.
// Until a claim says that such an address is Fanfare's and the node forwards it, the node must not reject its
// traffic.
func TestOwnedExcludesWhatIsNotForwardedYet(t *testing.T) {
	all := many(4, cluster.AnnounceBGP)
	all.Pools = []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceBGP,
		Ranges: []netipx.IPRange{netipx.MustParseIPRange("198.18.0.0-198.18.0.7")}}}
	claimed := func(n int) *cluster.Snapshot {
		snap := *all
		assigned := all.Assignments.Slice()
		snap.Assignments, snap.Unclaimed = cluster.AssignmentSet(assigned[:n]...), nil
		for _, a := range assigned[n:] {
			snap.Unclaimed = append(snap.Unclaimed, a.Addr)
		}
		return &snap
	}
	d := NewDecider(Config{Node: nodeName(0), Members: membersOf(4)})
	check := func(want string) {
		t.Helper()
		if got := fmt.Sprint(d.last.Proxy.Owned); got != want {
			t.Errorf("owned %s, want %s", got, want)
		}
	}
	d.Decide(claimed(0))
	check("[198.18.0.4/30]")
	d.Decide(claimed(1))
	check("[198.18.0.0/32 198.18.0.4/30]")
	snap := claimed(4) // the rest is claimed at once
	d.Decide(snap)
	check("[198.18.0.0/29]")
	// What is forwarded remains, also when the node is drained.
	drained := *snap
	drained.Nodes = slices.Clone(snap.Nodes)
	node(&drained, 0).Leaving = "drain"
	d.Decide(&drained)
	check("[198.18.0.0/29]")
}

// An aggregate attracts traffic for addresses that other nodes serve by kube-proxy.
func TestOwnedExcludesUnclaimedOfAnAggregate(t *testing.T) {
	d := Desired{
		Aggregates: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/30")}, Inputs: &Inputs{},
		Snapshot: &cluster.Snapshot{Unclaimed: []netip.Addr{netip.MustParseAddr("198.18.0.3")}},
	}
	if got, want := fmt.Sprint(d.owned()), "[198.18.0.0/31 198.18.0.2/32]"; got != want {
		t.Errorf("owned %s, want %s", got, want)
	}
}

// Requests are remembered for addresses that Layer 2 may announce, and for no node's own.
func TestL2Pools(t *testing.T) {
	ranges := func(s string) []netipx.IPRange { return []netipx.IPRange{netipx.MustParseIPRange(s)} }
	pools := []*cluster.Pool{
		{Announce: cluster.AnnounceL2, Ranges: ranges("192.0.2.4-192.0.2.7"),
			Occupied: []cluster.Occupied{{Range: netipx.MustParseIPRange("192.0.2.6-192.0.2.6"), By: "Node n1"}}},
		{Announce: cluster.AnnounceAdvertised, Ranges: ranges("192.0.2.8-192.0.2.15")},
		{Announce: cluster.AnnounceBGP, Ranges: ranges("198.51.100.0-198.51.100.255")},
		{Announce: cluster.AnnounceL2, Ranges: ranges("2001:db8::-2001:db8::ff")},
	}
	if got, want := fmt.Sprint(l2Pools(pools)), "[192.0.2.4/31 192.0.2.7/32 192.0.2.8/29]"; got != want {
		t.Errorf("pools %s, want %s", got, want)
	}
}
