package speaker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// An Event on the newer BGPPeer names both, once. Another Event follows if another BGPPeer
// replaces the older one.
func TestDuplicatePeerEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	world := func(more string) {
		p.desired = plan.Decide(plan.Config{Node: "n1",
			Gateways: plan.Gateways{IPv4: netip.MustParseAddr("10.0.0.254")}},
			plantest.Snapshot(t, []byte(plantest.DuplicatePeers+more)))
	}
	world("")
	p.expectEvents("no duplicates")
	world(plantest.OlderPeer)
	p.expectEvents("a duplicate", "Warning DuplicatePeer BGPPeer/tor1 (uid-tor1): node n1 has no session for BGPPeer "+
		"tor1: BGPPeer tor2, which is older, names router 10.0.0.1 too")
	world(strings.NewReplacer("tor2", "tor3").Replace(plantest.OlderPeer))
	p.expectEvents("of another one", "Warning DuplicatePeer BGPPeer/tor1 (uid-tor1): node n1 has no session for "+
		"BGPPeer tor1: BGPPeer tor3, which is older, names router 10.0.0.1 too")
	world("")
	p.expectEvents("no longer a duplicate")
	if diff := cmp.Diff(map[string]string{}, p.reported.duplicates); diff != "" {
		t.Error(diff)
	}
}
