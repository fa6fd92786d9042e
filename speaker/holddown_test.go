package speaker

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
)

// returningNode is a node with an interface whose process has only just started.
func returningNode() *layer2 {
	return &layer2{handover: newHandoverState("n1", nil), offer: &interfaceOffer{list: []l2.Interface{{Name: "eth0"}}}}
}

// A node begins a hold-down only if a node that gossip reaches answers for an address.
func TestHoldDownNeedsOwner(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
	for name, tt := range map[string]struct {
		members *membership.Members
		answers []netip.Addr
		want    bool
	}{
		"no node answers": {both, nil, false},
		"another answers": {both, []netip.Addr{vip}, true},
		"it is dead": {&membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2"}}},
			[]netip.Addr{vip}, false},
		"only by its Lease": {&membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true},
			{Node: "n2", Alive: true, ByLease: true}}}, []netip.Addr{vip}, false},
	} {
		l := returningNode()
		deliverState(t, l.handover, "n2", tt.answers...)
		now := time.Now()
		if got := l.returning(tt.members, now); got != tt.want {
			t.Errorf("%s: returning %t before it is able, want %t", name, got, tt.want)
		}
		if got := l.updateHoldDown(tt.members, tt.want, now); got != tt.want {
			t.Errorf("%s: sent as returning %t, want %t", name, got, tt.want)
		}
	}
	l := returningNode()
	if l.returning(nil, time.Now()) || l.updateHoldDown(nil, false, time.Now()) {
		t.Error("hold-down without members")
	}
}

// A result that differs from what the pass was decided by causes another pass.
func TestHoldDownRedecides(t *testing.T) {
	l := returningNode()
	both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
	decided := l.returning(both, time.Now())
	deliverState(t, l.handover, "n2", netip.MustParseAddr("192.0.2.1"))
	<-l.handover.changed // by the greeting
	if decided || !l.updateHoldDown(both, decided, time.Now()) {
		t.Error("the greeting after the decision does not count")
	}
	select {
	case <-l.handover.changed:
	default:
		t.Error("no other pass")
	}
}
