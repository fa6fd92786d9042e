package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// duplicatesOf describes a decision's sessions, and its duplicates with the older BGPPeers.
func duplicatesOf(d *Desired) (text string) {
	var parts []string
	for _, s := range d.BGP.Sessions {
		parts = append(parts, s.Name)
	}
	for _, dup := range d.Inputs.Duplicates() {
		parts = append(parts, dup.Peer.Name+"="+dup.Of.Name)
	}
	return strings.Join(parts, " ")
}

// A default gateway may be the router of another BGPPeer, and change. When the older BGPPeer is
// deleted, the newer one gets the session.
func TestDuplicatesFollowGateways(t *testing.T) {
	decider := NewDecider(Config{Node: "n1"})
	snap, after := plantest.Snapshot(t, []byte(plantest.DuplicatePeers)),
		plantest.Snapshot(t, []byte(plantest.DuplicatePeers+plantest.OlderPeer))
	for _, step := range []struct {
		when    string
		gateway string
		older   bool
		want    string
	}{
		{"the gateway is not known", "", false, "tor1"},
		{"it is another router", "10.0.0.254", false, "gateway tor1"},
		{"it is tor1", "10.0.0.1", false, "tor1 gateway=tor1"},
		{"an older BGPPeer names it as well", "10.0.0.1", true, "tor2 gateway=tor2 tor1=tor2"},
		{"the older one is deleted", "10.0.0.1", false, "tor1 gateway=tor1"},
		{"the gateway becomes another", "10.0.0.253", false, "gateway tor1"},
	} {
		decider.Config.Gateways = Gateways{}
		if step.gateway != "" {
			decider.Config.Gateways.IPv4 = netip.MustParseAddr(step.gateway)
		}
		now := snap
		if step.older {
			now = after
		}
		if got := duplicatesOf(decider.Decide(now)); got != step.want {
			t.Errorf("%s: %s, want %s", step.when, got, step.want)
		}
	}
}

// Duplicates are problems in the plan and the status.
func TestDuplicateProblems(t *testing.T) {
	d := Decide(Config{Node: "n1"}, plantest.Snapshot(t, []byte(plantest.DuplicatePeers+plantest.OlderPeer)))
	const want = `BGPPeer tor1: spec.peerAddress "10.0.0.1": node n1 has no session by it: BGPPeer tor2, which is older, names router 10.0.0.1 too. ` +
		`Delete one of the two, or give them nodeSelectors that never match the same node`
	var got []string
	for _, p := range d.Inputs.Problems() {
		got = append(got, p.String())
	}
	if !slices.Contains(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
	if plan := d.String(); !strings.Contains(plan, want) {
		t.Errorf("%s\nwant %q in it", plan, want)
	}
}
