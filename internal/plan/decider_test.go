package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// many is a cluster of n Services on as many nodes, each with an address and endpoints on two nodes.
func many(n int, announce cluster.Announce) *cluster.Snapshot {
	snap := &cluster.Snapshot{
		Pools: []*cluster.Pool{{Name: "lan", Announce: announce,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("198.18.0.0-198.18.255.255")}}},
		Peers: []*cluster.Peer{{Session: bgp.Session{Name: "tor1", PeerASN: 65000,
			PeerAddress: netip.MustParseAddr("10.9.9.9")}, MyASN: 65001}},
		AllNodes: true, L2Ready: true,
	}
	addr := netip.MustParseAddr("198.18.0.0")
	for i := range n {
		snap.Nodes = append(snap.Nodes, &cluster.Node{
			Name: nodeName(i), InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		})
		spec := &cluster.Spec{
			Name:                  cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%03d", i)},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			Ports:                 []cluster.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		}
		var list []cluster.Endpoint
		for pod := range 2 {
			list = append(list, cluster.Endpoint{
				Node: nodeName((i + pod) % n), Ready: true, Serving: true,
				Addr: netip.AddrFrom4([4]byte{10, 244, byte(i), byte(pod)}),
			})
		}
		snap.Services = snap.Services.With(cluster.Service{
			Spec: spec, Endpoints: plantest.Endpoints("http", 8080, list...),
		})
		snap.Assignments = snap.Assignments.With(cluster.Assignment{Addr: addr, Service: spec.Name, Pool: "lan"})
		addr = addr.Next()
	}
	return snap
}

func nodeName(i int) string { return fmt.Sprintf("n%03d", i) }

// membersOf are members on n nodes, of which some are dead.
func membersOf(n int, dead ...int) *membership.Members {
	m := &membership.Members{}
	for i := range n {
		m.Nodes = append(m.Nodes, membership.Member{Node: nodeName(i), Alive: !slices.Contains(dead, i),
			Since: time.Unix(0, 0), Interfaces: []cluster.Interface{{Name: "eth0",
				Prefixes: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16")}}}})
	}
	return m
}

// again counts the addresses that were decided again.
func again(was, is *Desired) (n int) {
	for a := range is.Addresses.All() {
		if was.Address(a.Addr) != a {
			n++
		}
	}
	return n
}

// One change among many Services decides about the addresses that it concerns, whatever changes.
func TestDeciderDecidesOnlyWhatIsConcerned(t *testing.T) {
	const n = 100
	remove := func(s *cluster.Snapshot) {
		s.Services, s.Assignments = s.Services.Without(s.Services.At(5).Name),
			s.Assignments.Without(s.Assignments.Slice()[5])
	}
	peer := func(s *cluster.Snapshot, p cluster.Peer) { s.Peers = []*cluster.Peer{&p} }
	for name, row := range map[string]struct {
		announce cluster.Announce
		change   func(*cluster.Snapshot, *Config)
		want     int
	}{
		"a Service goes": {cluster.AnnounceBGP, func(s *cluster.Snapshot, _ *Config) { remove(s) }, 0},
		"a node dies": {cluster.AnnounceBGP,
			func(_ *cluster.Snapshot, c *Config) { c.Members = membersOf(n, 7) }, 2},
		"a member's state begins": {cluster.AnnounceBGP,
			func(_ *cluster.Snapshot, c *Config) { c.Members = membersOf(n) }, 0},
		"another node is tainted": {cluster.AnnounceBGP,
			func(s *cluster.Snapshot, _ *Config) { node(s, 9).Leaving = "drain" }, 0},
		"a node gets an address": {cluster.AnnounceBGP, func(s *cluster.Snapshot, _ *Config) {
			node(s, 0).InternalIPs = []netip.Addr{netip.MustParseAddr("10.0.0.77")}
		}, 0},
		"a router's timer": {cluster.AnnounceBGP,
			func(s *cluster.Snapshot, _ *Config) { p := *s.Peers[0]; p.HoldTime = time.Minute; peer(s, p) }, 0},
		"a router wants weights": {cluster.AnnounceBGP,
			func(s *cluster.Snapshot, _ *Config) { p := *s.Peers[0]; p.Weights = true; peer(s, p) }, n},
		"this node is drained": {cluster.AnnounceBGP,
			func(s *cluster.Snapshot, _ *Config) { node(s, 0).Leaving = "drain" }, n},
	} {
		t.Run(name, func(t *testing.T) {
			d, snap := NewDecider(Config{Node: nodeName(0), Members: membersOf(n)}), many(n, row.announce)
			was, next := d.Decide(snap), *snap
			row.change(&next, &d.Config)
			is := d.Decide(&next)
			if got := again(was, is); got != row.want {
				t.Errorf("%d addresses were decided again, want %d", got, row.want)
			}
			if row.want == 0 && name != "a Service goes" &&
				(!was.BGP.Routes.Same(is.BGP.Routes) || !was.Proxy.VIPs.Same(is.Proxy.VIPs) ||
					!sortedset.Same(was.Proxy.Owned, is.Proxy.Owned)) {
				t.Error("lists that did not change were built again")
			}
		})
	}
}

// The same snapshot and configuration are the same decision.
func TestDeciderDecidesNothingTwice(t *testing.T) {
	d, snap := NewDecider(Config{Node: nodeName(0)}), many(3, cluster.AnnounceBGP)
	if first := d.Decide(snap); d.Decide(snap) != first {
		t.Error("decided again")
	}
}

// node replaces a node of a snapshot by a copy that may be written.
func node(s *cluster.Snapshot, i int) *cluster.Node {
	n := *s.Nodes[i]
	s.Nodes = slices.Clone(s.Nodes)
	s.Nodes[i] = &n
	return &n
}

// Over Layer 2, a node that dies loses its addresses: about those is decided again, and about those
// with endpoints there.
func TestDeciderElectsOnlyForTheDead(t *testing.T) {
	const n = 100
	d, snap := NewDecider(Config{Node: nodeName(0), Members: membersOf(n)}), many(n, cluster.AnnounceL2)
	was := d.Decide(snap)
	owned := 0
	for i, a := range was.Addresses.Slice() {
		if i != 6 && i != 7 && a.Owner == nodeName(7) { // Services 6 and 7 have endpoints there
			owned++
		}
	}
	d.Config.Members = membersOf(n, 7)
	is := d.Decide(snap)
	if got := again(was, is); got != owned+2 {
		t.Errorf("%d addresses were decided again, want %d", got, owned+2)
	}
	if got, want := is.String(), Decide(d.Config, snap).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The death of a node may let a third node serve a Service with the policy Local: one with endpoints
// that terminate. It may then come before the owner, which has not changed.
func TestDeciderElectsAmongTerminating(t *testing.T) {
	moved := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		snap := many(4, cluster.AnnounceL2)
		first := snap.Assignments.Slice()[0]
		snap.Services = cluster.ServiceSet(snap.Services.Slice()[:2]...)
		snap.Assignments = cluster.AssignmentSet(first,
			cluster.Assignment{Addr: first.Addr, Service: snap.Services.At(1).Name, Pool: "lan"})
		for i, s := range snap.Services.Slice() {
			s.Spec.ExternalTrafficPolicy, s.Spec.Ports[0].Port = corev1.ServiceExternalTrafficPolicyLocal, uint16(80+i)
			for e := range s.Endpoints.All() {
				e.Node, e.Ready = nodeName(r.IntN(4)), r.IntN(2) == 0
				e.Terminating = !e.Ready
			}
		}
		d := NewDecider(Config{Node: nodeName(0), Members: membersOf(4)})
		was := d.Decide(snap).Addresses.At(0).Owner
		// If most nodes are dead, their endpoints are not left out: the election alone shows that.
		dead := []int{1 + r.IntN(3), 1 + r.IntN(3), 1 + r.IntN(3)}
		d.Config.Members = membersOf(4, dead...)
		got, want := d.Decide(snap).Addresses.At(0).Owner, Decide(d.Config, snap).Addresses.At(0).Owner
		if got != want {
			t.Fatalf("seed %d: the owner is %s, want %s", seed, got, want)
		}
		if was != got && !slices.Contains(dead,
			slices.IndexFunc(snap.Nodes, func(n *cluster.Node) bool { return n.Name == was })) {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no owner moved that was alive")
	}
}

// A random world must concern both no address and some, or the two tests above prove little.
func TestWorldsChangeInputss(t *testing.T) {
	none, some := 0, 0
	for seed := range uint64(200) {
		w, d := plantest.NewWorld(seed), NewDecider(Config{Node: "n1"})
		for range 20 {
			was := d.last
			w.Step()
			w.ChangeInputs()
			d.Config.Members = w.Members
			is := d.Decide(w.Snapshot())
			switch {
			case was == nil || was.Inputs == is.Inputs:
			case again(was, is) == 0:
				none++
			default:
				some++
			}
		}
	}
	if none < 100 || some < 100 {
		t.Errorf("changed Views concerned no address %d times, and some %d times", none, some)
	}
}
