package plan

import (
	"fmt"
	"testing"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A pool of a whole subnet contains the nodes and the router, and perhaps addresses of another
// implementation: traffic to them must not be rejected like traffic to unused addresses.
func TestOwnedExcludesNodesAndRouters(t *testing.T) {
	pool := &cluster.Pool{
		Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.0-192.0.2.9")},
		Occupied: []cluster.Occupied{{Range: netipx.MustParseIPRange("192.0.2.1-192.0.2.1"), By: "BGPPeer tor1"}, {Range: netipx.MustParseIPRange("192.0.2.4-192.0.2.7"), By: "the pods of Node n1"},
			{Range: netipx.MustParseIPRange("192.0.2.9-192.0.2.9"), By: "Service shop/web of another implementation", Foreign: true}},
	}
	if got, want := fmt.Sprint(ownedPrefixes([]*cluster.Pool{pool})), "[192.0.2.0/32 192.0.2.2/31 192.0.2.8/32]"; got != want {
		t.Errorf("owned %s, want %s", got, want)
	}
}

// Requests are remembered for addresses that Layer 2 may announce, and for no node's own.
func TestL2Pools(t *testing.T) {
	ranges := func(s string) []netipx.IPRange { return []netipx.IPRange{netipx.MustParseIPRange(s)} }
	pools := []*cluster.Pool{
		{Announce: cluster.AnnounceL2, Ranges: ranges("192.0.2.4-192.0.2.7"), Occupied: []cluster.Occupied{{Range: netipx.MustParseIPRange("192.0.2.6-192.0.2.6"), By: "Node n1"}}},
		{Announce: cluster.AnnounceAdvertised, Ranges: ranges("192.0.2.8-192.0.2.15")},
		{Announce: cluster.AnnounceBGP, Ranges: ranges("198.51.100.0-198.51.100.255")},
		{Announce: cluster.AnnounceL2, Ranges: ranges("2001:db8::-2001:db8::ff")},
	}
	if got, want := fmt.Sprint(l2Pools(pools)), "[192.0.2.4/31 192.0.2.7/32 192.0.2.8/29]"; got != want {
		t.Errorf("pools %s, want %s", got, want)
	}
}
