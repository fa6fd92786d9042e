package election

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

func selector(t *testing.T, text string) cluster.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Selecting(s)
}

func advertisement(name string, interfaces ...string) *cluster.L2Advertisement {
	return &cluster.L2Advertisement{Name: name, Interfaces: interfaces}
}

// iface parses an interface: "eth0 192.0.2.0/24 2001:db8::/64".
func iface(text string) cluster.Interface {
	fields := strings.Fields(text)
	i := cluster.Interface{Name: fields[0]}
	for _, p := range fields[1:] {
		i.Prefixes = append(i.Prefixes, netip.MustParsePrefix(p))
	}
	return i
}

func node(name string, interfaces ...string) Node {
	n := Node{Name: name, Labels: labels.Set{"name": name}}
	for _, i := range interfaces {
		n.Interfaces = append(n.Interfaces, iface(i))
	}
	return n
}

var vip = netip.MustParseAddr("192.0.2.5")

// owner is the node that should answer for an address, empty if there is no candidate.
func (c *Candidates) owner(a *Address) string {
	owner, _ := c.Elect(a)
	return owner
}

// rank returns all candidates, the owner first: each takes over if all before it fail.
func (c *Candidates) rank(a *Address) []string {
	type candidate struct {
		name string
		rank rank
	}
	var all []candidate
	c.each(a, func(i int, r rank) { all = append(all, candidate{c.nodes[i].Name, r}) })
	slices.SortStableFunc(all, func(x, y candidate) int { return x.rank.compare(y.rank) })
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = one.name
	}
	return names
}

// whyNot says why a node is no candidate, empty if it is one.
func (c *Candidates) whyNot(a *Address, node string) string {
	i, _ := c.find(node)
	not, _ := c.check(a, &c.entriesFor(a.Eligibility)[i], i)
	if not == fit {
		return ""
	}
	return fmt.Sprintf("node %s %s", node, not.describe(a, 1))
}

// Versions must agree about the hash.
func TestHashIsStable(t *testing.T) {
	for _, tt := range []struct {
		addr, node string
		want       uint64
	}{
		{"192.0.2.5", "n1", 0x16f9ab7e38ce93f8},
		{"2001:db8::5", "n1", 0x2bcae128f43abf31},
		{"::ffff:192.0.2.5", "", 0xf3c28d6a7790248d},
	} {
		if got := score(hashAddr(netip.MustParseAddr(tt.addr)), hashName(tt.node)); got != tt.want {
			t.Errorf("score of %s and %q is %#x, want %#x", tt.addr, tt.node, got, tt.want)
		}
	}
}

// The order of candidates for each criterion. By the hash alone 192.0.2.5 has the order of
// the first row.
func TestRank(t *testing.T) {
	const eth0 = "eth0 192.0.2.0/24"
	plain := func() []Node { return []Node{node("a", eth0), node("b", eth0), node("c", eth0)} }
	prefers := advertisement("lan")
	prefers.Preferred = []cluster.Preference{
		{Weight: 10, Selector: selector(t, "name=a")}, {Weight: 10, Selector: selector(t, "name=b")},
		{Weight: 1, Selector: selector(t, "name=b")}}
	only := advertisement("only")
	only.NodeSelector = selector(t, "name in (a, b)")
	for name, tt := range map[string]struct {
		change  func([]Node)
		address Address
		want    string
	}{
		"hash":                     {nil, Address{Anywhere: true}, "HASH"},
		"preferred":                {nil, Address{Anywhere: true, Preferred: "a"}, "a HASH"},
		"preferred, not candidate": {nil, Address{Anywhere: true, Preferred: "z"}, "HASH"},
		"pinned":                   {nil, Address{Anywhere: true, Preferred: "a", Pinned: "b"}, "b a HASH"},
		"weights": {nil, Address{Anywhere: true,
			Eligibility: Eligibility{By: []*cluster.L2Advertisement{prefers}}}, "b a c"},
		"claim before weights": {nil, Address{Anywhere: true, Preferred: "c",
			Eligibility: Eligibility{By: []*cluster.L2Advertisement{prefers}}}, "c b a"},
		"selected": {nil, Address{Anywhere: true, Preferred: "b",
			Eligibility: Eligibility{By: []*cluster.L2Advertisement{only}}}, "b a"},
		"one is enough": {nil, Address{Anywhere: true, Preferred: "b",
			Eligibility: Eligibility{By: []*cluster.L2Advertisement{only, prefers}}}, "b a c"},
		"leaving comes last": {func(n []Node) {
			n[1].Availability = Leaving
		}, Address{Anywhere: true, Pinned: "b", Preferred: "a"}, "a c b"},
		"only leaving": {func(n []Node) {
			n[0].Availability, n[1].Availability, n[2].Availability = Dead, Leaving, Dead
		}, Address{Anywhere: true}, "b"},
		"returning comes last": {func(n []Node) {
			n[0].Returning, n[1].Availability = true, Leaving
		}, Address{Anywhere: true, Pinned: "a"}, "c b a"},
		"only returning": {func(n []Node) {
			n[0].Availability, n[1].Returning, n[2].Availability = Dead, true, NotReady
		}, Address{Anywhere: true}, "b"},
		"all returning": {func(n []Node) {
			n[0].Returning, n[1].Returning, n[2].Returning = true, true, true
		}, Address{Anywhere: true, Pinned: "b"}, "b HASH"},
		"refused": {func(n []Node) {
			n[0].Availability, n[1].Availability, n[2].Availability = NotReady, Excluded, NetworkUnavailable
		},
			Address{Anywhere: true}, ""},
		"no such subnet": {func(n []Node) {
			n[0].Interfaces = []cluster.Interface{iface("eth0 198.51.100.0/24")}
		}, Address{Anywhere: true, Preferred: "b"}, "b c"},
		"unknown interfaces": {func(n []Node) {
			n[0].Interfaces, n[0].Unknown = nil, true
		}, Address{Anywhere: true, Pinned: "a", Preferred: "b"}, "a b c"},
		"local": {nil, Address{Local: [][]string{{"a", "c"}}, Preferred: "c"}, "c a"},
		"local and shared": {nil, Address{Local: [][]string{{"a", "c"}}, Anywhere: true, Preferred: "b",
			Pinned: "c"}, "c a b"},
		"able to serve all":     {nil, Address{Local: [][]string{{"a", "c"}, {"b", "c"}}, Preferred: "a"}, "c a b"},
		"no endpoint anywhere":  {nil, Address{}, ""},
		"local, of other nodes": {nil, Address{Local: [][]string{{"y", "z"}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := plain()
			if tt.change != nil {
				tt.change(nodes)
			}
			e := New(nodes)
			a := tt.address
			a.Addr = vip
			want := strings.Fields(tt.want)
			if i := slices.Index(want, "HASH"); i >= 0 {
				byHash := New(plain()).rank(&Address{Addr: vip, Anywhere: true})
				want = append(want[:i], slices.DeleteFunc(byHash,
					func(n string) bool { return slices.Contains(want[:i], n) })...)
			}
			got := e.rank(&a)
			if !slices.Equal(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
			owner := ""
			if len(want) > 0 {
				owner = want[0]
			}
			if got := e.owner(&a); got != owner {
				t.Errorf("owner %q, want %q", got, owner)
			}
			if why := e.None(&a); (why == "") != (owner != "") {
				t.Errorf("owner %q, and none because %q", owner, why)
			}
			for _, n := range plain() {
				if why := e.whyNot(&a, n.Name); (why == "") != slices.Contains(want, n.Name) {
					t.Errorf("%s is no candidate because %q, and %v are candidates", n.Name, why, want)
				}
			}
		})
	}
}

// The reason is the first criterion by which the owner differs from the next candidate.
func TestElectReason(t *testing.T) {
	prefers := advertisement("lan")
	prefers.Preferred = []cluster.Preference{{Weight: 10, Selector: selector(t, "name=b")}}
	byHash := New(threeNodes([3]Availability{})).rank(&Address{Addr: vip, Anywhere: true})[0]
	for want, tt := range map[string]struct {
		standings [3]Availability
		address   Address
	}{
		"b the only candidate": {[3]Availability{Dead, Fit, NotReady},
			Address{Anywhere: true, Pinned: "b"}},
		"b the others are about to leave": {[3]Availability{Leaving, Fit, Leaving},
			Address{Anywhere: true, Pinned: "a"}},
		"b with endpoints of more ports or Services": {[3]Availability{},
			Address{Local: [][]string{{"a", "b"}, {"b", "c"}}, Pinned: "a"}},
		"b named by annotation fanfare.io/l2-node": {[3]Availability{},
			Address{Anywhere: true, Pinned: "b", Preferred: "a"}},
		"b named by its AddressClaim": {[3]Availability{}, Address{Anywhere: true, Preferred: "b"}},
		"b preferred by L2Advertisements": {[3]Availability{},
			Address{Anywhere: true, Eligibility: Eligibility{By: []*cluster.L2Advertisement{prefers}}}},
		byHash + " by hash, of 3 candidates": {[3]Availability{}, Address{Anywhere: true}},
		" ":                                  {[3]Availability{}, Address{}},
	} {
		tt.address.Addr = vip
		owner, by := New(threeNodes(tt.standings)).Elect(&tt.address)
		if got := owner + " " + by; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// threeNodes are a, b and c.
func threeNodes(standings [3]Availability) (nodes []Node) {
	for i, s := range standings {
		n := node(string(rune('a'+i)), "eth0 192.0.2.0/24")
		n.Availability = s
		nodes = append(nodes, n)
	}
	return nodes
}

// Only lasting differences make candidates unequal.
func TestEquals(t *testing.T) {
	const eth0 = "eth0 192.0.2.0/24"
	prefers := advertisement("lan")
	prefers.Preferred = []cluster.Preference{{Weight: 10, Selector: selector(t, "name in (a, b)")}}
	leaving := node("d", eth0)
	leaving.Availability = Leaving
	e := New([]Node{leaving, node("c", eth0), node("b", eth0), node("a", eth0)})
	for _, tt := range []struct {
		address Address
		want    string
	}{
		{Address{Anywhere: true, Preferred: "c"}, "[a b c]"},
		{Address{Anywhere: true, Preferred: "d"}, "[a b c]"},
		{Address{Anywhere: true, Preferred: "c", Eligibility: Eligibility{By: []*cluster.L2Advertisement{prefers}}},
			"[a b]"},
		{Address{Anywhere: true, Pinned: "c", Eligibility: Eligibility{By: []*cluster.L2Advertisement{prefers}}},
			"[c]"},
		{Address{Local: [][]string{{"a", "c"}, {"c", "d"}}}, "[c]"},
		{Address{}, "[]"},
	} {
		tt.address.Addr = vip
		if got := fmt.Sprint(e.Equals(&tt.address)); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.address, got, tt.want)
		}
	}
}

// The number of nodes that each condition removed.
func TestNoCandidateReasons(t *testing.T) {
	standing := func(name string, s Availability) Node {
		n := node(name, "eth0 192.0.2.0/24")
		n.Availability = s
		return n
	}
	gold := advertisement("gold", "eth1", "bond*")
	gold.NodeSelector = selector(t, "name notin (n5, n6)")
	e := New([]Node{standing("n0", Dead), standing("n1", Dead), standing("n2", NotReady), standing("n3", Excluded),
		standing("n4", NetworkUnavailable), node("n5"), node("n6"),
		node("n7", "eth0 192.0.2.0/24", "bond0 198.51.100.0/24"), node("n8", "bond1 192.0.2.0/25")})
	eligibility := Eligibility{By: []*cluster.L2Advertisement{gold}}
	a := Address{Addr: vip, Eligibility: eligibility, Local: [][]string{{"n7"}}}
	want := "of 9 nodes none can answer: 2 have no live speaker, 1 is not Ready, " +
		"1 has the label node.kubernetes.io/exclude-from-external-load-balancers, 1 has the condition " +
		"NetworkUnavailable, " +
		"2 are not selected by L2Advertisement gold, 1 has no interface in the subnet of 192.0.2.5 that is " +
		"one of bond*, eth1, " +
		"1 has no ready endpoint, and externalTrafficPolicy is Local"
	if got := e.None(&a); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := e.whyNot(&a, "n7"), "node n7 has no interface in the subnet of 192.0.2.5 that "+
		"is one of bond*, eth1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	last := Address{Addr: netip.MustParseAddr("192.0.2.255"), Anywhere: true}
	if got, want := New([]Node{node("n1", "eth0 192.0.2.0/24")}).None(&last),
		"of 1 node none can answer: 1 has 192.0.2.255 as the broadcast address of a subnet, which no host can have; "+
			"give the Service another address"; got != want {
		t.Errorf("None = %q, want %q", got, want)
	}
	if got := New([]Node{node("n1", "eth0 192.0.2.0/24"), node("n2", "eth0 192.0.0.0/16")}).Owner(&last); got != "n2" {
		t.Errorf("%s answers for a broadcast address of the other node", got)
	}
	plain := Address{Addr: netip.MustParseAddr("2001:db8::5"), Anywhere: true}
	if got, want := New([]Node{node("n1", "eth0 192.0.2.0/24")}).None(&plain),
		"of 1 node none can answer: 1 has no interface in the subnet of 2001:db8::5"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := New(nil).None(&plain), "the cluster has no node"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Names, patterns and subnets.
func TestInterfaces(t *testing.T) {
	n := node("a", "bond0 192.0.2.0/24", "bond1 198.51.100.0/24", "eth0 192.0.2.0/25 2001:db8::/64", "eth0.7")
	two := advertisement("two", "eth0")
	other := advertisement("other", "bond0")
	other.NodeSelector = selector(t, "name=b")
	for _, tt := range []struct {
		by   []*cluster.L2Advertisement
		addr string
		want string
	}{
		{nil, "192.0.2.5", "[bond0 eth0]"},
		{nil, "192.0.2.200", "[bond0]"},
		{nil, "2001:db8::7", "[eth0]"},
		{nil, "203.0.113.1", "[]"},
		{[]*cluster.L2Advertisement{advertisement("x", "bond*")}, "192.0.2.5", "[bond0]"},
		{[]*cluster.L2Advertisement{advertisement("x", "bond1")}, "192.0.2.5", "[bond1]"},
		{[]*cluster.L2Advertisement{advertisement("x", "eth0.7", "eth*")}, "192.0.2.5", "[eth0 eth0.7]"},
		{[]*cluster.L2Advertisement{advertisement("x", "eth?")}, "192.0.2.5", "[eth0]"},
		{[]*cluster.L2Advertisement{advertisement("x", "bond?"), two}, "192.0.2.5", "[bond0 eth0]"},
		{[]*cluster.L2Advertisement{other, two}, "203.0.113.1", "[eth0]"},
		{[]*cluster.L2Advertisement{other}, "192.0.2.5", "[]"},
		{[]*cluster.L2Advertisement{advertisement("all"), two}, "203.0.113.1", "[eth0]"},
	} {
		eligibility, addr := Eligibility{By: tt.by}, netip.MustParseAddr(tt.addr)
		got := eligibility.Interfaces(addr, &n)
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s by %s: on %v, want %s", addr, eligibility.names(), got, tt.want)
		}
		// A node without a matching interface is no candidate.
		candidate := New([]Node{n}).owner(&Address{Addr: addr, Eligibility: eligibility, Anywhere: true}) == "a"
		if candidate != (len(got) != 0) {
			t.Errorf("%s by %s: on %v, and a candidate: %t", addr, eligibility.names(), got, candidate)
		}
	}
}

func TestEligibilityOf(t *testing.T) {
	gold, silver := advertisement("gold"), advertisement("silver")
	gold.Pools, gold.ServiceSelector = []string{"lan"}, selector(t, "tier=gold")
	silver.Pools, silver.ServiceSelector = []string{"lan"}, selector(t, "tier=silver")
	all := advertisement("all")
	bgp := &cluster.Advertisement{Name: "bgp", Pools: []string{"lan"}}
	service := func(tier string) cluster.Service {
		return cluster.Service{Spec: &cluster.Spec{Labels: labels.Set{"tier": tier}}}
	}
	from := func(pool string, a cluster.Announce) cluster.Origin { return cluster.Origin{Pool: pool, Announce: a} }
	advertised := from("lan", cluster.AnnounceAdvertised)
	for name, tt := range map[string]struct {
		snap     cluster.Snapshot
		from     cluster.Origin
		services []cluster.Service
		by       string
		ok       bool
		why      string
	}{
		"L2": {cluster.Snapshot{}, from("lan", cluster.AnnounceL2),
			[]cluster.Service{service("")}, "", true, ""},
		"L2, and an advertisement": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{gold}},
			from("lan", cluster.AnnounceL2), []cluster.Service{service("lead")}, "", true, ""},
		"BGP": {cluster.Snapshot{}, from("lan", cluster.AnnounceBGP), nil, "", false, ""},
		"BGP, and an advertisement": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{all}},
			from("lan", cluster.AnnounceBGP), []cluster.Service{service("")}, "", false, ""},
		"not known": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{all}},
			cluster.Origin{}, []cluster.Service{service("")}, "", false, ""},
		"no advertisement": {cluster.Snapshot{}, advertised, []cluster.Service{service("")}, "", false, ""},
		"only a BGPAdvertisement": {cluster.Snapshot{Advertisements: []*cluster.Advertisement{bgp}}, advertised,
			nil, "", false, ""},
		"all": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{all}}, advertised,
			[]cluster.Service{service("")}, "all", true, ""},
		"both kinds": {cluster.Snapshot{Advertisements: []*cluster.Advertisement{bgp},
			L2Advertisements: []*cluster.L2Advertisement{all}}, advertised, []cluster.Service{service("")}, "all", true,
			""},
		"gold": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{gold, silver}},
			advertised, []cluster.Service{service("gold")}, "gold", true, ""},
		"shared by gold and silver": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{gold, silver}},
			advertised, []cluster.Service{service("silver"), service("gold")}, "gold, silver", true, ""},
		"an advertisement of another": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{gold}},
			from("wan", cluster.AnnounceAdvertised), []cluster.Service{service("gold")}, "", false, ""},
		"lead": {cluster.Snapshot{L2Advertisements: []*cluster.L2Advertisement{gold, silver}}, advertised,
			[]cluster.Service{service("lead")}, "", false,
			"the serviceSelector of L2Advertisement gold, silver does not match the Service"},
	} {
		eligibility, ok, why := EligibilityOf(&tt.snap, tt.from, tt.services)
		if eligibility.names() != tt.by || ok != tt.ok || why != tt.why {
			t.Errorf("%s: by %q %t %q, want %q %t %q", name, eligibility.names(), ok, why, tt.by, tt.ok, tt.why)
		}
	}
}

// Only the pool that an address is from lets a Service name the node.
func TestEligibilityAllowsNode(t *testing.T) {
	snap := &cluster.Snapshot{Pools: []*cluster.Pool{{Name: "lan"}, {Name: "open", AllowL2Node: true}}}
	for pool, want := range map[string]bool{"lan": false, "open": true, "gone": false, "": false} {
		if e, _, _ := EligibilityOf(snap, cluster.Origin{Pool: pool, Announce: cluster.AnnounceL2},
			nil); e.AllowNode != want {
			t.Errorf("pool %q: allowed %t, want %t", pool, e.AllowNode, want)
		}
	}
}

// onPort is an endpoint of one port of a Service.
type onPort struct {
	port string
	cluster.Endpoint
}

// The nodes that can serve the ports of a Service with externalTrafficPolicy Local.
func TestAddress(t *testing.T) {
	endpoint := func(port, addr, node string, ready, serving, terminating bool) onPort {
		return onPort{port, cluster.Endpoint{
			Addr: netip.MustParseAddr(addr), Node: node, Ready: ready, Serving: serving, Terminating: terminating,
		}}
	}
	local := func(pin string, list ...onPort) cluster.Service {
		s := cluster.Service{
			Spec: &cluster.Spec{ExternalTrafficPolicy: "Local", L2Node: pin}, Endpoints: &cluster.Endpoints{},
		}
		for _, e := range list {
			port := cluster.Port{Name: e.port, Protocol: "TCP", Port: 80}
			i := slices.Index(s.Ports, port)
			if i < 0 {
				i = len(s.Ports)
				s.Spec.Ports = append(s.Spec.Ports, port)
				s.Endpoints.Subsets = append(s.Endpoints.Subsets, cluster.Subset{Ports: []cluster.Port{port}})
			}
			subset := &s.Endpoints.Subsets[i]
			subset.List = append(subset.List, e.Endpoint)
			slices.SortFunc(subset.List, func(a, b cluster.Endpoint) int { return a.Addr.Compare(b.Addr) })
		}
		return s
	}
	everywhere := cluster.Service{Spec: &cluster.Spec{ExternalTrafficPolicy: "Cluster", L2Node: "n7"}}
	dead := node("dead")
	dead.Availability = Dead
	e := New([]Node{node("a"), node("b"), dead})
	for name, tt := range map[string]struct {
		services []cluster.Service
		want     string
	}{
		"ready": {[]cluster.Service{local("", endpoint("", "10.0.0.1", "b", true, true, false),
			endpoint("", "10.0.0.2", "a", true, true, false))}, "[[a b]] false "},
		"other family": {[]cluster.Service{local("", endpoint("", "fd00::1", "a", true, true, false),
			endpoint("", "10.0.0.2", "b", true, true, false))}, "[[b]] false "},
		"terminating": {[]cluster.Service{local("", endpoint("", "10.0.0.1", "a", false, true, true),
			endpoint("", "10.0.0.2", "b", false, false, true))}, "[[a]] false "},
		"one ready": {[]cluster.Service{local("", endpoint("", "10.0.0.1", "a", false, true, true),
			endpoint("", "10.0.0.2", "b", true, true, false))}, "[[b]] false "},
		"by port": {[]cluster.Service{local("", endpoint("x", "10.0.0.1", "a", false, true, true),
			endpoint("y", "10.0.0.2", "b", true, true, false))}, "[[a] [b]] false "},
		"without a node": {[]cluster.Service{local("", endpoint("", "10.0.0.1", "", true, true, false))},
			"[] false "},
		"dead": {[]cluster.Service{local("", endpoint("", "10.0.0.1", "dead", true, true, false),
			endpoint("", "10.0.0.2", "b", false, true, true))}, "[[b]] false "},
		"only dead": {[]cluster.Service{local("", endpoint("", "10.0.0.1", "dead", true, true, false))},
			"[[dead]] false "},
		"no node can": {[]cluster.Service{local("", endpoint("", "10.0.0.1", "a", false, true, false))},
			"[] false "},
		"shared": {[]cluster.Service{local("n6", endpoint("", "10.0.0.1", "a", true, true, false)),
			everywhere}, "[[a]] true n6"},
		"no slices at all": {[]cluster.Service{{Spec: &cluster.Spec{ExternalTrafficPolicy: "Local"}}, everywhere},
			"[] true n7"},
	} {
		a := e.Address(vip, Eligibility{AllowNode: true}, tt.services, &cluster.Claim{Node: "n1"})
		if got := fmt.Sprintf("%v %t %s", a.Local, a.Anywhere, a.Pinned); got != tt.want || a.Preferred != "n1" {
			t.Errorf("%s: %s, preferred %s; want %s", name, got, a.Preferred, tt.want)
		}
	}
	if a := e.Address(vip, Eligibility{}, []cluster.Service{everywhere}, nil); a.Pinned != "" {
		t.Errorf("a Service names node %s, although the pool does not allow it", a.Pinned)
	}
	ready := local("", endpoint("", "10.0.0.1", "a", false, false, false))
	ready.PublishNotReady = true
	if a := e.Address(vip, Eligibility{}, []cluster.Service{ready}, nil); fmt.Sprint(a.Local) != "[[a]]" ||
		a.Preferred != "" {
		t.Errorf("not ready, but published: %v %q", a.Local, a.Preferred)
	}
}

// Every node computes the same owner, whatever the order of nodes. A removed node affects
// only its own addresses.
func TestAllNodesElectTheSame(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var nodes []Node
	for i := range 20 {
		n := node(fmt.Sprintf("node-%d", i), "eth0 10.0.0.0/16")
		n.Availability = []Availability{Fit, Fit, Fit, Leaving, Dead, NotReady}[rnd.IntN(6)]
		nodes = append(nodes, n)
	}
	nodes = append(nodes, node("goes", "eth0 10.0.0.0/16"))
	shuffled := slices.Clone(nodes)
	rnd.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	e, other, without := New(nodes), New(shuffled), New(nodes[:20])
	owned := 0
	for i := range 2000 {
		a := Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Anywhere: true}
		rank, after := e.rank(&a), without.rank(&a)
		if !slices.Equal(rank, other.rank(&a)) || e.owner(&a) != rank[0] {
			t.Fatalf("%s: %v, in another order %v, owner %s", a.Addr, rank, other.rank(&a), e.owner(&a))
		}
		if rank[0] == "goes" {
			owned++
		}
		if rest := slices.DeleteFunc(slices.Clone(rank),
			func(n string) bool { return n == "goes" }); !slices.Equal(rest, after) {
			t.Fatalf("%s: %v, and without one of them %v", a.Addr, rank, after)
		}
	}
	// An even share, within five standard deviations.
	fair := 2000 / float64(len(e.Equals(&Address{Addr: netip.MustParseAddr("10.0.0.1"), Anywhere: true})))
	if d := float64(owned) - fair; d*d > 25*fair {
		t.Errorf("one of the nodes has %d of 2000 addresses, a fair share is %.0f", owned, fair)
	}
}

func TestRelevant(t *testing.T) {
	pool := &cluster.Pool{Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.0-192.0.2.63"),
		netipx.MustParseIPRange("2001:db8:0:1::-2001:db8:0:1::ffff")}}
	snap := &cluster.Snapshot{Pools: []*cluster.Pool{pool},
		L2Advertisements: []*cluster.L2Advertisement{advertisement("x", "eth9", "cali*")},
		Assignments: cluster.AssignmentSet(
			cluster.Assignment{Addr: netip.MustParseAddr("192.0.2.5"), Pool: "lan"},
			cluster.Assignment{Addr: netip.MustParseAddr("203.0.113.7"),
				From: cluster.Origin{Announce: cluster.AnnounceL2}}, // The pool of the latter was removed.
		)}
	for text, want := range map[string]bool{
		"eth0 192.0.2.0/24":             true,
		"eth0 192.0.2.32/28":            true,
		"eth0 192.0.2.64/26":            false,
		"eth0 2001:db8:0:1::/64":        true,
		"eth0 2001:db8:0:2::/64":        false,
		"eth0":                          false,
		"eth9":                          true,
		"cali123":                       false,
		"cali123 169.254.0.0/16":        false,
		"bond0 10.0.0.0/8 192.0.2.0/30": true,
		"eth0 203.0.113.0/24":           true,
		"eth0 203.0.113.8/29":           false,
	} {
		if got := Relevant(snap, iface(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

// The owner of each of 10,000 addresses among 100 nodes: what a speaker computes when a
// node dies.
func BenchmarkOwner(b *testing.B) {
	var nodes []Node
	for i := range 100 {
		nodes = append(nodes, node(fmt.Sprintf("node-%03d", i), "eth0 10.0.0.0/16", "eth1 192.0.2.0/24"))
	}
	for b.Loop() {
		e := New(nodes)
		for i := range 10_000 {
			e.owner(&Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Anywhere: true})
		}
	}
}
