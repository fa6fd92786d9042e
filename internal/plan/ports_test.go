package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

// portWorld has one address, that up to two Services share, with up to three ports each, whose pods
// are anywhere and in any state.
func portWorld(seed uint64, announce cluster.Announce) *cluster.Snapshot {
	r := rand.New(rand.NewPCG(seed, 0))
	snap := &cluster.Snapshot{
		Pools: []*cluster.Pool{{Name: "lan", Announce: announce,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.0-192.0.2.5")}}},
		Peers: []*cluster.Peer{{Session: bgp.Session{Name: "tor1", PeerASN: 65000,
			PeerAddress: netip.MustParseAddr("10.9.9.9")}, MyASN: 65001}},
		AllNodes: true, L2Ready: true,
	}
	for _, name := range plantest.Nodes {
		snap.Nodes = append(snap.Nodes, &cluster.Node{
			Name: name, InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		})
	}
	for i := range 1 + r.IntN(2) {
		spec := &cluster.Spec{
			Name: cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", i)}, Created: time.Unix(int64(i), 0),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		}
		if r.IntN(4) > 0 {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		e := &cluster.Endpoints{}
		for range 1 + r.IntN(3) { // subsets
			var list []cluster.Endpoint
			for pod := range 3 {
				if r.IntN(2) > 0 {
					continue
				}
				p := cluster.Endpoint{
					Addr: netip.AddrFrom4([4]byte{10, 244, byte(i), byte(pod)}),
					Node: append(plantest.Nodes, "")[r.IntN(4)],
				}
				p.Ready, p.Terminating = r.IntN(3) > 0, r.IntN(4) == 0
				p.Serving = p.Ready || r.IntN(2) == 0
				list = append(list, p)
			}
			e.Subsets = append(e.Subsets, cluster.Subset{List: list})
		}
		for n := range 1 + r.IntN(3) {
			p := cluster.Port{Name: fmt.Sprintf("p%d", n), Protocol: corev1.ProtocolTCP, Port: uint16(80 + 10*i + n)}
			spec.Ports = append(spec.Ports, p)
			for j := range e.Subsets {
				if r.IntN(2) == 0 {
					p.Port = uint16(8080 + n + r.IntN(2))
					e.Subsets[j].Ports = append(e.Subsets[j].Ports, p)
				}
			}
		}
		snap.Services = snap.Services.With(cluster.Service{Spec: spec, Endpoints: e})
		snap.Assignments = snap.Assignments.With(cluster.Assignment{
			Addr: netip.MustParseAddr("192.0.2.1"), Service: spec.Name, Pool: "lan",
		})
	}
	return snap
}

// Whatever the ports' endpoints are: an address is announced only if some port is served; a node that
// announces it serves all ports that any node serves; and nodes that have endpoints of all ports are
// preferred.
func TestAnnouncedMeansServed(t *testing.T) {
	announced, elsewhere := 0, 0
	for seed := range plantest.Seeds(t) {
		for _, announce := range []cluster.Announce{cluster.AnnounceBGP, cluster.AnnounceL2} {
			snap := portWorld(seed, announce)
			var speaking []string
			complete := map[string]bool{}
			servable := false
			for _, node := range plantest.Nodes {
				d := Decide(Config{Node: node}, snap)
				a := d.Addresses.At(0)
				backends := func(t proxy.Target) bool { return len(t.Backends) > 0 }
				local := true
				for _, f := range a.VIP.Frontends {
					some := backends(f.Internal)
					servable = servable || some
					if a.Announce && some && (!backends(f.External) || f.External.Miss != proxy.Reject) {
						t.Errorf("seed %d, %s: %s announces and does not serve port %d:\n%s", seed, announce, node,
							f.Port, d)
					}
					local = local && (!some || backends(f.External) && f.External.Remote != proxy.Masquerade)
				}
				complete[node] = local
				for _, r := range d.ReasonsOf(a) {
					if r.Code == cluster.Elsewhere {
						elsewhere++
					}
				}
				if a.Announce {
					speaking, announced = append(speaking, node), announced+1
				}
			}
			if len(speaking) > 0 && !servable {
				t.Errorf("seed %d, %s: %v announce what no node serves", seed, announce, speaking)
			}
			whole := slices.ContainsFunc(speaking, func(n string) bool { return complete[n] })
			if part := slices.ContainsFunc(speaking,
				func(n string) bool { return !complete[n] }); announce == cluster.AnnounceBGP && whole && part &&
				allLocal(snap) {
				t.Errorf("seed %d: of %v some have endpoints of all ports (%v), and others announce, too", seed,
					speaking, complete)
			}
		}
	}
	if announced < 100 || elsewhere < 100 {
		t.Errorf("announced %d times, and forwarded elsewhere %d times", announced, elsewhere)
	}
}

func allLocal(snap *cluster.Snapshot) bool {
	for s := range snap.Services.All() {
		if s.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			return false
		}
	}
	return true
}

// A Service with many ports and endpoints is refused before each port gets each endpoint.
func TestProductOfPortsAndEndpointsRefused(t *testing.T) {
	snap := portWorld(0, cluster.AnnounceBGP)
	s := cluster.Service{Spec: &cluster.Spec{Name: cluster.Name{Namespace: "shop", Name: "huge"}}}
	subset := cluster.Subset{}
	for i := range 16384 {
		p := cluster.Port{Name: fmt.Sprintf("p%05d", i), Protocol: corev1.ProtocolTCP, Port: uint16(i + 1)}
		s.Spec.Ports, subset.Ports = append(s.Spec.Ports, p), append(subset.Ports, p)
	}
	for i := range 100 {
		subset.List = append(subset.List, cluster.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), Node: "n1", Ready: true,
		})
	}
	s.Endpoints = &cluster.Endpoints{Subsets: []cluster.Subset{subset}}
	snap.Services = cluster.ServiceSet(s)
	snap.Assignments = cluster.AssignmentSet(cluster.Assignment{
		Addr: netip.MustParseAddr("192.0.2.1"), Service: s.Name, Pool: "lan",
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := Decide(Config{Node: "n1"}, snap)
	runtime.ReadMemStats(&after)
	const want = "192.0.2.1 shop/huge proxy ProxyRefused: not forwarded: endpoints of all ports together: 1638400; " +
		"in nftables mode an address can have 1048576 entries in the kernel: use several Services"
	if got := d.Reasons()[0].String(); got != want || !d.Addresses.At(0).Refused() || d.Announce.Len() > 0 {
		t.Errorf("got %s, announced %v", got, d.Announce.Slice())
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 20<<20 {
		t.Errorf("the decision took %d bytes", got)
	}
}

// Reasons of a Service with as many ports as an address can have are short, and count.
func TestReasonsOfManyPortsAreShort(t *testing.T) {
	snap := portWorld(0, cluster.AnnounceBGP)
	s := cluster.Service{
		Spec: &cluster.Spec{Name: cluster.Name{Namespace: "shop", Name: "huge"},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}, Endpoints: &cluster.Endpoints{},
	}
	long := strings.Repeat("x", 58)
	subset := cluster.Subset{List: []cluster.Endpoint{{Addr: netip.MustParseAddr("10.244.0.1"), Node: "n1",
		Ready: true}}}
	for i := range 16384 {
		p := cluster.Port{Name: fmt.Sprintf("%05d%s", i, long), Protocol: corev1.ProtocolTCP, Port: uint16(i + 1)}
		s.Spec.Ports = append(s.Spec.Ports, p)
		if i%2 == 0 {
			subset.Ports = append(subset.Ports, p)
		}
	}
	s.Endpoints.Subsets = []cluster.Subset{subset}
	snap.Services = cluster.ServiceSet(s)
	snap.Assignments = cluster.AssignmentSet(cluster.Assignment{
		Addr: netip.MustParseAddr("192.0.2.1"), Service: s.Name, Pool: "lan",
	})
	for _, node := range []string{"n1", "n2"} {
		d := Decide(Config{Node: node}, snap)
		for _, r := range d.Reasons() {
			if len(r.Message) > 1000 {
				t.Errorf("%s: a Reason of %d bytes: %s", node, len(r.Message), r)
			}
			if r.Protocol == "proxy" && !strings.Contains(r.Message, "and 8188 more are not served") {
				t.Errorf("%s: %s", node, r)
			}
		}
	}
}
