package speaker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
)

// A world is a small cluster that changes at random. Its snapshots share what
// did not change, as those of internal/cluster do.
type world struct {
	*rand.Rand
	// traits are what routers are told of routes: a source of its own, so that the same
	// seeds go on making the same worlds otherwise.
	traits      *rand.Rand
	services    []cluster.Service
	nodes       []*cluster.Node
	peers       []*cluster.Peer
	pools       []*cluster.Pool
	adverts     []*cluster.Advertisement
	assignments []cluster.Assignment
	members     *membership.Members // nil at first
	returning   bool

	// wires is what L2 depends on: a source of its own, as traits is.
	wires      *rand.Rand
	l2adverts  []*cluster.L2Advertisement
	claims     []*cluster.Claim
	interfaces []l2.Interface // of n1; nil at first
}

const (
	worldServices  = 5
	worldAddresses = 6
)

var worldNodes = []string{"n1", "n2", "n3"}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), traits: rand.New(rand.NewPCG(seed, 2)), wires: rand.New(rand.NewPCG(seed, 4))}
	for _, name := range worldNodes {
		w.nodes = append(w.nodes, &cluster.Node{Name: name, InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	}
	w.pools = []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceBGP, Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.0-192.0.2.5")}}}
	w.peers = []*cluster.Peer{{Name: "tor1", MyASN: 65001, PeerASN: 65000, NodeSelector: labels.Everything()}}
	for range worldServices {
		w.step()
	}
	return w
}

// snapshot is the world as it is now.
func (w *world) snapshot() *cluster.Snapshot {
	return &cluster.Snapshot{
		Services: slices.Clone(w.services), Nodes: slices.Clone(w.nodes), Pools: w.announcedPools(),
		Peers: slices.Clone(w.peers), Advertisements: slices.Clone(w.adverts), Assignments: w.assignments,
		L2Advertisements: slices.Clone(w.l2adverts), L2Ready: w.interfaces != nil, AllNodes: true, Claims: w.claims,
	}
}

// announcedPools are the pools, announced as the advertisements say where there are any,
// else by BGP where there is a router, else by ARP.
func (w *world) announcedPools() (list []*cluster.Pool) {
	announce := cluster.AnnounceL2
	switch {
	case len(w.adverts)+len(w.l2adverts) > 0:
		announce = cluster.AnnounceAdvertised
	case len(w.peers) > 0:
		announce = cluster.AnnounceBGP
	}
	for i, p := range w.pools {
		if p.Announce != announce {
			with := *p
			with.Announce = announce
			w.pools[i] = &with
		}
		list = append(list, w.pools[i])
	}
	return list
}

// step changes one thing.
func (w *world) step() {
	if w.traits.IntN(5) == 0 {
		w.hear()
	}
	if w.wires.IntN(5) == 0 {
		w.rewire()
	}
	switch n := w.IntN(20); {
	case n < 2:
		w.toggleService(w.IntN(worldServices))
	case n < 4 && len(w.services) > 0:
		w.reassign(w.IntN(len(w.services)))
	case n < 5:
		i := w.IntN(len(w.nodes))
		node := *w.nodes[i]
		node.Excluded = w.IntN(3) == 0
		w.nodes[i] = &node
	case n < 6:
		w.peers = nil
		if w.IntN(4) > 0 {
			w.peers = []*cluster.Peer{{Name: "tor1", MyASN: 65001, PeerASN: 65000, NodeSelector: labels.Everything()}}
		}
	case n < 8:
		w.advertise()
	case len(w.services) > 0:
		w.endpoints(w.IntN(len(w.services)))
	}
}

// rewire changes what decides who answers over L2.
func (w *world) rewire() {
	switch w.wires.IntN(3) {
	case 0:
		w.l2adverts = nil
		for i := range w.wires.IntN(3) {
			a := &cluster.L2Advertisement{Name: fmt.Sprintf("l%d", i), ServiceSelector: labels.Everything(), NodeSelector: labels.Everything()}
			if w.wires.IntN(3) == 0 {
				a.ServiceSelector = labels.SelectorFromSet(labels.Set{"tier": "gold"})
			}
			if w.wires.IntN(3) == 0 {
				a.Interfaces = []string{"eth0"}
			}
			w.l2adverts = append(w.l2adverts, a)
		}
	case 1:
		w.claims = nil
		for i := range worldAddresses {
			if w.wires.IntN(2) == 0 {
				w.claims = append(w.claims, &cluster.Claim{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Pool: "lan", Node: worldNodes[w.wires.IntN(len(worldNodes))]})
			}
		}
	default:
		w.interfaces = []l2.Interface{}
		for i := range w.wires.IntN(3) {
			w.interfaces = append(w.interfaces, l2.Interface{Name: fmt.Sprintf("eth%d", i), Prefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.0.2.0/%d", 24+w.wires.IntN(7)))}})
		}
	}
}

// hear has nodes die, say farewell and come back, or be heard of no more at all.
func (w *world) hear() {
	w.members, w.returning = nil, w.traits.IntN(3) == 0
	if w.traits.IntN(6) == 0 {
		return
	}
	w.members = &membership.Members{}
	for _, name := range worldNodes {
		m := membership.Member{Node: name, Alive: w.traits.IntN(3) > 0, Since: time.Unix(int64(w.traits.IntN(1000)), 0)}
		m.Left = !m.Alive && w.traits.IntN(4) == 0
		m.Returning = w.traits.IntN(4) == 0
		m.Interfaces = []membership.Interface{{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29")}}}
		w.members.Nodes = append(w.members.Nodes, m)
	}
}

// advertise has addresses announced otherwise: by aggregates that reach beyond the
// pool, that contain one another or come and go, in part or not at all.
func (w *world) advertise() {
	w.adverts = nil
	for i := range w.IntN(3) {
		a := &cluster.Advertisement{Name: fmt.Sprintf("a%d", i), Length4: 28 + w.IntN(5), Length6: 128,
			ServiceSelector: labels.Everything(), NodeSelector: labels.Everything()}
		if w.IntN(3) == 0 {
			a.ServiceSelector = labels.SelectorFromSet(labels.Set{"tier": "gold"})
		}
		if w.traits.IntN(2) == 0 {
			a.MED = new(uint32(w.traits.IntN(3)))
		}
		if w.traits.IntN(2) == 0 {
			a.Communities = w.communities()
		}
		w.adverts = append(w.adverts, a)
	}
}

// communities are one of few.
func (w *world) communities() *cluster.Communities {
	return &cluster.Communities{Standard: []uint32{uint32(w.traits.IntN(3))}}
}

// toggleService creates or deletes a Service.
func (w *world) toggleService(n int) {
	name := cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", n)}
	i, found := slices.BinarySearchFunc(w.services, name, func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
	if found {
		w.services = slices.Delete(slices.Clone(w.services), i, i+1)
		w.assignments = slices.DeleteFunc(slices.Clone(w.assignments), func(a cluster.Assignment) bool { return a.Service == name })
		return
	}
	spec := &cluster.Spec{
		Name: name, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
		Ports: []cluster.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	if w.IntN(2) == 0 {
		spec.Labels = labels.Set{"tier": "gold"}
	}
	if w.IntN(2) == 0 {
		spec.ExternalTrafficPolicy, spec.HealthCheckPort = corev1.ServiceExternalTrafficPolicyLocal, uint16(32000+n)
	}
	if w.traits.IntN(3) == 0 {
		spec.Communities = w.communities()
	}
	w.services = slices.Insert(slices.Clone(w.services), i, cluster.Service{Spec: spec})
	w.endpoints(i)
	w.reassign(i)
}

// reassign gives a Service another address, seldom one that is taken.
func (w *world) reassign(i int) {
	name := w.services[i].Name
	w.assignments = slices.DeleteFunc(slices.Clone(w.assignments), func(a cluster.Assignment) bool { return a.Service == name })
	addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(w.IntN(worldAddresses))})
	taken := slices.ContainsFunc(w.assignments, func(a cluster.Assignment) bool { return a.Addr == addr })
	if taken && w.IntN(4) > 0 || w.IntN(8) == 0 {
		return // for now it has none
	}
	w.assignments = append(w.assignments, cluster.Assignment{Addr: addr, Service: name, Pool: "lan"})
	slices.SortFunc(w.assignments, func(a, b cluster.Assignment) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return a.Service.Compare(b.Service)
	})
}

// endpoints gives a Service other endpoints.
func (w *world) endpoints(i int) {
	var list []cluster.Endpoint
	for pod := range 4 {
		if w.IntN(2) == 0 {
			continue
		}
		e := cluster.Endpoint{PortName: "http", Protocol: corev1.ProtocolTCP, Node: worldNodes[pod%len(worldNodes)],
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), byte(pod)}), 8080)}
		switch w.IntN(6) {
		case 0:
			e.Serving, e.Terminating = true, true
		case 1:
			e.Terminating = true
		case 2: // not ready yet, or not any more
		default:
			e.Ready, e.Serving = true, true
		}
		list = append(list, e)
	}
	w.services = slices.Clone(w.services)
	w.services[i].Endpoints = &cluster.Endpoints{List: list}
}
