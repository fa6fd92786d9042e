package plantest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
)

// A World is a small cluster that changes at random. Its snapshots share what has not changed,
// like those of internal/cluster.
type World struct {
	*rand.Rand
	// attributes is the random source for route attributes and members: its own one, so that
	// seeds still make the same worlds otherwise.
	attributes     *rand.Rand
	Services       []cluster.Service
	Nodes          []*cluster.Node
	Peers          []*cluster.Peer
	Pools          []*cluster.Pool
	Advertisements []*cluster.Advertisement
	Assignments    []cluster.Assignment
	Members        *membership.Members // nil at first
	Returning      bool

	// view is the random source of ChangeInputs.
	view     *rand.Rand
	announce cluster.Announce // of the pools without advertisements; empty: by the routers
	// layer2 is the random source for what Layer 2 depends on.
	layer2           *rand.Rand
	L2Advertisements []*cluster.L2Advertisement
	Claims           []*cluster.Claim
	Interfaces       []l2.Interface // of n1; nil at first
}

// The maximum numbers of Services and addresses of a World.
const (
	Services  = 5
	Addresses = 6
)

// Nodes are the names of the nodes of a World.
var Nodes = []string{"n1", "n2", "n3"}

// NewWorld makes the World of a seed: always the same.
func NewWorld(seed uint64) *World {
	w := &World{
		Rand: rand.New(rand.NewPCG(seed, 1)), attributes: rand.New(rand.NewPCG(seed, 2)),
		view: rand.New(rand.NewPCG(seed, 5)), layer2: rand.New(rand.NewPCG(seed, 4)),
	}
	for _, name := range Nodes {
		w.Nodes = append(w.Nodes, &cluster.Node{Name: name, InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	}
	w.Pools = []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceBGP,
		Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.0-192.0.2.5")},
		// and not 2, which Services ask for as well
		ServiceCommunities: &cluster.Communities{Standard: []bgp.Community{0, 1}}}}
	w.Peers = []*cluster.Peer{{Session: bgp.Session{Name: "tor1", PeerASN: 65000}, MyASN: 65001}}
	for range Services {
		w.Step()
	}
	return w
}

// Snapshot is the world as it is now.
func (w *World) Snapshot() *cluster.Snapshot {
	return &cluster.Snapshot{
		Services: cluster.ServiceSet(w.Services...), Nodes: slices.Clone(w.Nodes), Pools: w.announcedPools(),
		Peers: slices.Clone(w.Peers), Advertisements: slices.Clone(w.Advertisements),
		Assignments: cluster.AssignmentSet(w.Assignments...), L2Advertisements: slices.Clone(w.L2Advertisements),
		L2Ready: w.Interfaces != nil, AllNodes: true, Claims: cluster.ClaimSet(w.Claims...),
	}
}

// announcedPools returns the pools. They have announce Advertised if there are advertisements,
// else BGP if there is a router, else L2.
func (w *World) announcedPools() (list []*cluster.Pool) {
	announce := cluster.AnnounceL2
	switch {
	case len(w.Advertisements)+len(w.L2Advertisements) > 0:
		announce = cluster.AnnounceAdvertised
	case w.announce != "":
		announce = w.announce
	case len(w.Peers) > 0:
		announce = cluster.AnnounceBGP
	}
	for i, p := range w.Pools {
		if p.Announce != announce {
			with := *p
			with.Announce = announce
			w.Pools[i] = &with
		}
		list = append(list, w.Pools[i])
	}
	return list
}

// Step changes one thing: most often endpoints, as in a real cluster.
func (w *World) Step() {
	if w.attributes.IntN(5) == 0 {
		w.changeMembers()
	}
	if w.layer2.IntN(5) == 0 {
		w.changeL2()
	}
	switch n := w.IntN(20); {
	case n < 2:
		w.ToggleService(w.IntN(Services))
	case n < 4 && len(w.Services) > 0:
		w.reassign(w.IntN(len(w.Services)))
	case n < 5:
		i := w.IntN(len(w.Nodes))
		node := *w.Nodes[i]
		node.Excluded = w.IntN(3) == 0
		w.Nodes[i] = &node
	case n < 6:
		w.Peers = nil
		if w.IntN(4) > 0 {
			w.Peers = []*cluster.Peer{{Session: bgp.Session{Name: "tor1", PeerASN: 65000}, MyASN: 65001}}
		}
	case n < 8:
		w.Advertise()
	case len(w.Services) > 0:
		w.SetEndpoints(w.IntN(len(w.Services)))
	}
}

// ChangeInputs changes a router, a node, a pool or topology hints: no address may depend on the
// change, or all may. Step does not do so.
func (w *World) ChangeInputs() {
	switch n := w.view.IntN(4); {
	case n == 0 && len(w.Peers) > 0:
		w.Peers = []*cluster.Peer{{Session: bgp.Session{Name: "tor1", PeerASN: 65000,
			HoldTime: time.Duration(w.view.IntN(3)) * time.Minute, Weights: w.view.IntN(3) == 0}, MyASN: 65001}}
		if w.view.IntN(2) == 0 {
			w.Peers = append(w.Peers, &cluster.Peer{
				Session: bgp.Session{Name: "tor2", PeerASN: 65000, PeerAddress: netip.MustParseAddr("192.0.2.1")},
				MyASN:   65001,
			})
		}
	case n == 1:
		i := w.view.IntN(len(w.Nodes))
		node := *w.Nodes[i]
		node.Labels = labels.Set{corev1.LabelTopologyZone: fmt.Sprintf("z%d", w.view.IntN(2))}
		node.InternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + w.view.IntN(2))})}
		node.NotReady, node.ReadyUnknown = w.view.IntN(6) == 0, w.view.IntN(4) == 0
		w.Nodes[i] = &node
	case n == 2:
		pool := *w.Pools[0]
		pool.Occupied = nil
		if w.view.IntN(2) == 0 {
			pool.Occupied = []cluster.Occupied{{Range: netipx.MustParseIPRange("192.0.2.3-192.0.2.3")}}
		}
		w.Pools = []*cluster.Pool{&pool}
		pool.ServiceCommunities = &cluster.Communities{Standard: []bgp.Community{bgp.Community(w.view.IntN(2))}}
		pool.AllowL2Node = w.view.IntN(2) == 0
		w.announce = []cluster.Announce{"", cluster.AnnounceL2, cluster.AnnounceAdvertised}[w.view.IntN(3)]
	default:
		w.Services = slices.Clone(w.Services)
		for i := range w.Services {
			if e := w.Services[i].Endpoints; e != nil {
				w.Services[i].Endpoints = w.hinted(e)
			}
		}
	}
}

// hinted returns endpoints with topology hints.
func (w *World) hinted(e *cluster.Endpoints) *cluster.Endpoints {
	list := slices.Clone(e.Subsets[0].List)
	for i := range list {
		list[i].ForZones = cluster.Hint(fmt.Sprintf("z%d", w.view.IntN(2)))
	}
	return Endpoints("http", 8080, list...)
}

// changeL2 changes what the election of owners depends on.
func (w *World) changeL2() {
	switch w.layer2.IntN(3) {
	case 0:
		w.L2Advertisements = nil
		for i := range w.layer2.IntN(3) {
			a := &cluster.L2Advertisement{Name: fmt.Sprintf("l%d", i)}
			if w.layer2.IntN(3) == 0 {
				a.ServiceSelector = cluster.Selecting(labels.SelectorFromSet(labels.Set{"tier": "gold"}))
			}
			if w.layer2.IntN(3) == 0 {
				a.Interfaces = []string{"eth0"}
			}
			w.L2Advertisements = append(w.L2Advertisements, a)
		}
	case 1:
		w.Claims = nil
		for i := range Addresses {
			if w.layer2.IntN(2) == 0 {
				w.Claims = append(w.Claims, &cluster.Claim{
					Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Pool: "lan",
					Node: Nodes[w.layer2.IntN(len(Nodes))],
				})
			}
		}
	default:
		w.Interfaces = []l2.Interface{}
		for i := range w.layer2.IntN(3) {
			w.Interfaces = append(w.Interfaces, l2.Interface{
				Name: fmt.Sprintf("eth%d", i), Prefixes: []netip.Prefix{
					netip.MustParsePrefix(fmt.Sprintf("192.0.2.0/%d", 24+w.layer2.IntN(7)))},
			})
		}
	}
}

// changeMembers lets nodes die, leave and return, or removes the membership.
func (w *World) changeMembers() {
	w.Members, w.Returning = nil, w.attributes.IntN(3) == 0
	if w.attributes.IntN(6) == 0 {
		return
	}
	w.Members = &membership.Members{}
	for _, name := range Nodes {
		m := membership.Member{
			Node: name, Alive: w.attributes.IntN(3) > 0, Since: time.Unix(int64(w.attributes.IntN(1000)), 0),
		}
		m.Left = !m.Alive && w.attributes.IntN(4) == 0
		m.Returning = w.attributes.IntN(4) == 0
		m.Interfaces = []cluster.Interface{{Name: "eth0",
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29")}}}
		w.Members.Nodes = append(w.Members.Nodes, m)
	}
}

// Advertise replaces the advertisements: aggregates that exceed the pool or contain one another,
// for all Services or some.
func (w *World) Advertise() {
	w.Advertisements = nil
	for i := range w.IntN(3) {
		a := &cluster.Advertisement{Name: fmt.Sprintf("a%d", i), Length4: 28 + w.IntN(5), Length6: 128}
		if w.IntN(3) == 0 {
			a.ServiceSelector = cluster.Selecting(labels.SelectorFromSet(labels.Set{"tier": "gold"}))
		}
		if w.attributes.IntN(2) == 0 {
			a.MED = new(uint32(w.attributes.IntN(3)))
		}
		if w.attributes.IntN(2) == 0 {
			a.Communities = w.communities()
		}
		w.Advertisements = append(w.Advertisements, a)
	}
}

func (w *World) communities() *cluster.Communities {
	return &cluster.Communities{Standard: []bgp.Community{bgp.Community(w.attributes.IntN(3))}}
}

// ToggleService creates or deletes a Service. A new one gets endpoints and, mostly, an address.
func (w *World) ToggleService(n int) {
	name := cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", n)}
	i, found := slices.BinarySearchFunc(w.Services, name,
		func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
	if found {
		w.Services = slices.Delete(slices.Clone(w.Services), i, i+1)
		w.Assignments = slices.DeleteFunc(slices.Clone(w.Assignments),
			func(a cluster.Assignment) bool { return a.Service == name })
		return
	}
	spec := &cluster.Spec{
		Name: name, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
		Ports:      []cluster.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	if w.IntN(2) == 0 {
		spec.Labels = labels.Set{"tier": "gold"}
	}
	if w.IntN(2) == 0 {
		spec.ExternalTrafficPolicy, spec.HealthCheckPort = corev1.ServiceExternalTrafficPolicyLocal, uint16(32000+n)
	}
	if w.attributes.IntN(3) == 0 {
		spec.Communities = w.communities()
	}
	w.Services = slices.Insert(slices.Clone(w.Services), i, cluster.Service{Spec: spec})
	w.SetEndpoints(i)
	w.reassign(i)
}

// reassign gives a Service another address, rarely a taken one.
func (w *World) reassign(i int) {
	name := w.Services[i].Name
	w.Assignments = slices.DeleteFunc(slices.Clone(w.Assignments),
		func(a cluster.Assignment) bool { return a.Service == name })
	addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(w.IntN(Addresses))})
	taken := slices.ContainsFunc(w.Assignments, func(a cluster.Assignment) bool { return a.Addr == addr })
	if taken && w.IntN(4) > 0 || w.IntN(8) == 0 {
		return // for now it has none
	}
	w.Assignments = append(w.Assignments, cluster.Assignment{Addr: addr, Service: name, Pool: "lan"})
	slices.SortFunc(w.Assignments, func(a, b cluster.Assignment) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return a.Service.Compare(b.Service)
	})
}

// SetEndpoints gives a Service other endpoints, in all states of KEP-1669.
func (w *World) SetEndpoints(i int) {
	var list []cluster.Endpoint
	for pod := range 4 {
		if w.IntN(2) == 0 {
			continue
		}
		e := cluster.Endpoint{Node: Nodes[pod%len(Nodes)], Addr: netip.AddrFrom4([4]byte{10, 244, byte(i), byte(pod)})}
		switch w.IntN(6) {
		case 0:
			e.Serving, e.Terminating = true, true
		case 1:
			e.Terminating = true
		case 2: // not ready
		default:
			e.Ready, e.Serving = true, true
		}
		list = append(list, e)
	}
	w.Services = slices.Clone(w.Services)
	w.Services[i].Endpoints = Endpoints("http", 8080, list...)
}
