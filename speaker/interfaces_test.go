package speaker

import (
	"fmt"
	"net/netip"
	"testing"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
)

// The API server receives only interfaces that may answer for addresses, not those of pods.
func TestRelevantInterfaces(t *testing.T) {
	iface := func(name string, prefixes ...string) l2.Interface {
		i := l2.Interface{Name: name}
		for _, p := range prefixes {
			i.Prefixes = append(i.Prefixes, netip.MustParsePrefix(p))
		}
		return i
	}
	all := []l2.Interface{iface("cali1"), iface("eth0", "198.51.100.0/24", "192.0.2.0/24"),
		iface("eth1", "198.51.100.0/24"), iface("eth9")}
	snap := &cluster.Snapshot{
		Pools: []*cluster.Pool{{Announce: cluster.AnnounceAdvertised,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.64-192.0.2.127")}}},
		L2Advertisements: []*cluster.L2Advertisement{{Name: "lan", Interfaces: []string{"cali*", "eth9"}}},
	}
	var got []string
	for _, i := range relevantInterfaces(snap, all) {
		got = append(got, i.Name)
	}
	if want := "[eth0 eth9]"; fmt.Sprint(got) != want {
		t.Errorf("received %v, want %s", got, want)
	}
}

// Each node elects by the offers of the others and by its own interfaces. The result is the
// same on all nodes.
func TestOfferedInterfacesElectOneNode(t *testing.T) {
	iface := func(name, prefix string) l2.Interface {
		return l2.Interface{Name: name, MAC: l2.MAC{2}, Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}}
	}
	var many []l2.Interface
	for i := range 100 {
		many = append(many, iface(fmt.Sprintf("vlan%02d", i), fmt.Sprintf("10.0.%d.0/24", i)))
	}
	eth0 := []l2.Interface{iface("eth0", "192.0.2.0/24")}
	pool := func(text string) []*cluster.Pool {
		return []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceL2,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange(text)}}}
	}
	for name, tt := range map[string]struct {
		change  func(*cluster.Snapshot)
		addr    string
		n1, n2  []l2.Interface
		of      string // pool
		answers string
	}{
		"in a pool": {func(s *cluster.Snapshot) {
			s.Pools = pool("192.0.2.200-192.0.2.220")
		}, "192.0.2.200", eth0, eth0, "lan", "[n1]"},
		"no longer in a pool": {func(s *cluster.Snapshot) {
			s.Pools = pool("198.51.100.0-198.51.100.9")
		}, "192.0.2.200", eth0, eth0, "", "[n1]"},
		"on an interface that is named": {func(s *cluster.Snapshot) {
			s.Pools = []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceAdvertised}}
			s.L2Advertisements = []*cluster.L2Advertisement{{Name: "x", Interfaces: []string{"eth0"}}}
		}, "203.0.113.1", eth0, eth0, "lan", "[n1]"},
		"there are too many interfaces": {func(s *cluster.Snapshot) {
			s.Pools = pool("10.0.0.0-10.0.255.255")
		}, "10.0.99.1", many, many, "lan", "[]"},
		"one of two has too many of them": {func(s *cluster.Snapshot) {
			s.Pools = pool("10.0.0.0-10.0.255.255")
		}, "10.0.99.1", many, many[99:], "lan", "[n2]"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 2)
			snap := *f.snap
			tt.change(&snap)
			addr := netip.MustParseAddr(tt.addr)
			snap.Assignments = cluster.AssignmentSet(cluster.Assignment{
				Addr: addr, Service: snap.Services.At(0).Name, Pool: tt.of,
				From: cluster.Origin{Pool: "lan", Announce: cluster.AnnounceL2},
			})
			snap.Claims = cluster.ClaimSet(&cluster.Claim{Addr: addr, Pool: tt.of, Node: "n1"})
			var interfaces []*interfaceOffer
			members := &membership.Members{}
			for i, all := range [][]l2.Interface{tt.n1, tt.n2} {
				var none *interfaceOffer
				offer := none.next(&snap, all, [2]bool{}, true)
				list, err := membership.DecodeInterfaces(offer.meta.Encoded)
				if err != nil || len(list) != len(offer.list) {
					t.Fatalf("received %v, can be elected by %v: %v", list, offer.list, err)
				}
				interfaces = append(interfaces, offer)
				members.Nodes = append(members.Nodes,
					membership.Member{Node: fmt.Sprintf("n%d", i+1), Alive: true, Interfaces: list})
			}
			var answers []string
			for i, offer := range interfaces {
				node := fmt.Sprintf("n%d", i+1)
				if d := plan.Decide(plan.Config{Node: node, Interfaces: offer.list, Members: members},
					&snap); sortedset.HasAddr(d.Answered, addr) {
					answers = append(answers, node)
				}
			}
			if fmt.Sprint(answers) != tt.answers {
				t.Errorf("%v answer, want %s", answers, tt.answers)
			}
		})
	}
}

// Changes of other objects do not change the result.
func TestOfferIsReused(t *testing.T) {
	f := newFleet(t, 1)
	all := []l2.Interface{{Name: "eth0", Prefixes: fleetSubnet}, {Name: "cali1"}}
	var none *interfaceOffer
	first := none.next(f.snap, all, [2]bool{}, true)
	other := *f.snap
	other.Services = cluster.Services{}
	if again := first.next(&other, all, [2]bool{}, true); again != first {
		t.Error("computed again although no input has changed")
	}
	withheld := first.next(f.snap, all, [2]bool{true, false}, true)
	if again := withheld.next(&other, all, [2]bool{true, false}, true); withheld == first || again != withheld {
		t.Errorf("without IPv4 %v, then %v", withheld.list, again.list)
	}
	other.Assignments = cluster.AssignmentSet(other.Assignments.Slice()...)
	if again := first.next(&other, all, [2]bool{}, true); again == first || !sortedset.Same(again.list, first.list) {
		t.Errorf("of %v became %v", first.list, again.list)
	}
	other.Pools = nil
	if none := first.next(&other, all, [2]bool{}, true); none.list == nil || len(none.list) > 0 {
		t.Errorf("without a pool there is %v", none.list)
	}
}
