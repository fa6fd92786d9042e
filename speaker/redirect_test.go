package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/l2"
)

// The nodes agree on the owners that an address has had.
func TestOwners(t *testing.T) {
	c := newSpeakerGroup(t, "n1", "n2", "n3")
	a := netip.MustParseAddr("192.0.2.1")
	expect := func(when string, want ...string) {
		t.Helper()
		for i, want := range want {
			node := fmt.Sprintf("n%d", i+1)
			if got := strings.Join(c.nodes[node].history.Saved(nil).Owners[a], " "); got != want {
				t.Errorf("%s: owners for %s are %q; want %q", when, node, got, want)
			}
		}
	}
	all := func(want string) []string { return []string{want, want, want} }
	hold := func(node string) { c.nodes[node].reportChanges([]netip.Addr{a}) }
	hold("n1")
	expect("at first", "n1", "", "") // of no use to others
	revision := c.nodes["n3"].history.Revision()
	c.nodes["n1"].reportChanges(nil)
	if c.nodes["n3"].history.Revision() != revision {
		t.Error("another revision without a change")
	}
	hold("n2")
	expect("moved", "n2 n1", "n2 n1", "")
	c.nodes["n2"].reportChanges(nil)
	hold("n3")
	expect("moved again", all("n3 n2 n1")...)
	c.nodes["n3"].reportChanges(nil)
	hold("n1")
	expect("moved back", all("n1 n3 n2")...)
	// While n1 is suspended, n2 takes over. Each believes that it is the owner, until n2 stops.
	c.lost = true
	hold("n2")
	c.lost = false
	c.broadcastState("n2")
	expect("two answer", all("n2 n1 n3")...)
	c.nodes["n2"].reportChanges(nil)
	c.broadcastState("n1")
	expect("one answers", all("n1 n2 n3")...)
	// The message that n3 answered is lost, not that it stopped.
	c.lost = true
	hold("n3")
	c.lost = false
	c.nodes["n3"].reportChanges(nil)
	if got := c.nodes["n1"].history.Saved(nil).Owners[a]; !slices.Equal(got, []string{"n1", "n3", "n2"}) {
		t.Errorf("a message was lost: %q", got)
	}
	// A node that takes an address is its owner from then on.
	if got := c.nodes["n2"].history.Owners(sortedset.AddrSet(a))[a]; !slices.Equal(got, []string{"n2", "n1", "n3"}) {
		t.Errorf("n2 is about to answer: %q", got)
	}
	handover := c.nodes["n1"]
	handover.reportChanges(nil)
	handover.setAssigned(assignedSet(), assignedSet(), time.Now().Add(2*holderLifetime))
	if got := handover.history.Owners(sortedset.AddrSet(a)); len(got) > 0 {
		t.Errorf("an address without a Service has owners: %v", got)
	}
}

// An offer has the interfaces' own addresses if there is room, and never instead of an
// interface.
func TestOfferHasOwnAddresses(t *testing.T) {
	snap := plantest.Snapshot(t, []byte(plantest.Advertised+linkedWorld))
	var all []l2.Interface
	for i := range 40 {
		all = append(all, l2.Interface{
			Name: "vlan" + strings.Repeat("x", i%3), MAC: l2.MAC{2},
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			Addrs:    []netip.Addr{netip.MustParseAddr("192.0.2.7")},
		})
	}
	for _, n := range []int{1, 20, 30} {
		var offer *interfaceOffer
		offer = offer.next(snap, all[:n:n], [2]bool{}, true)
		list, err := membership.DecodeInterfaces(offer.meta.Encoded)
		if err != nil || len(list)+offer.meta.Omitted != n {
			t.Fatalf("%d: %d offered, %d not: %v", n, len(list), offer.meta.Omitted, err)
		}
		one := membership.Member{Interfaces: list}
		if got := len(one.Addresses()); got != 0 && got != n || n == 1 && got != 1 || n == 30 && got != 0 {
			t.Errorf("%d interfaces offered %d addresses", n, got)
		}
		announced, _ := membership.EncodeInterfaces(
			[]cluster.Interface{{Name: "vlan", MAC: l2.MAC{2}, Prefixes: all[0].Prefixes}})
		if least := 512 / len(announced); n <= 20 && len(list) < min(n, least) {
			t.Errorf("%d of %d interfaces are offered", len(list), n)
		}
	}
}
