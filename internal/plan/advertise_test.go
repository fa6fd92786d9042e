package plan

import (
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// advertWorld has one node, two routers and Services with an endpoint each.
func advertWorld(adverts ...*cluster.Advertisement) *cluster.Snapshot {
	peer := func(name, addr string) *cluster.Peer {
		return &cluster.Peer{
			Session: bgp.Session{Name: name, PeerAddress: netip.MustParseAddr(addr), PeerASN: 65000}, MyASN: 65001,
		}
	}
	return &cluster.Snapshot{
		Nodes: []*cluster.Node{{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.11")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}},
		Peers: []*cluster.Peer{peer("tor1", "10.0.1.1"), peer("tor2", "fe80::2%eth0")},
		Pools: []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceAdvertised,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.1-192.0.2.9")}}},
		Advertisements: adverts,
		AllNodes:       true,
	}
}

// Addresses of other nodes are in no aggregate, and before the other nodes are known, there are
// no aggregates.
func TestAggregateExcludesOtherNodes(t *testing.T) {
	of := func(snap *cluster.Snapshot) (route, why string) {
		give(snap, "a", "192.0.2.5", corev1.ServiceExternalTrafficPolicyCluster, 80)
		d := Decide(Config{Node: "n1"}, snap)
		r := d.ReasonsOf(d.Addresses.At(0))
		return routesText(d.BGP.Routes), r[len(r)-1].Message
	}
	snap := advertWorld(&cluster.Advertisement{Name: "a", Length4: 24, Length6: 128})
	snap.Occupied = []cluster.Occupied{
		{Range: netipx.MustParseIPRange("192.0.1.0-192.0.1.255"), By: "the pods of Node n0"},
		{Range: netipx.MustParseIPRange("192.0.2.200-192.0.2.200"), By: "Node n2"}}
	if route, why := of(snap); route != "192.0.2.5/32" || !strings.Contains(why, "contains 192.0.2.200 of Node n2") {
		t.Errorf("with another node in it: announces %s, says %s", route, why)
	}
	snap = advertWorld(&cluster.Advertisement{Name: "a", Length4: 24, Length6: 128})
	snap.AllNodes = false
	if route, why := of(snap); route != "192.0.2.5/32" || !strings.Contains(why, "have not been read") {
		t.Errorf("with unknown nodes: announces %s, says %s", route, why)
	}
}

func give(s *cluster.Snapshot, name, addr string, policy corev1.ServiceExternalTrafficPolicy, port uint16) {
	n, pod := cluster.Name{Namespace: "shop", Name: name}, "10.244.1.5"
	if netip.MustParseAddr(addr).Is6() {
		pod = "fd00::5"
	}
	s.Services = s.Services.With(cluster.Service{
		Spec: &cluster.Spec{
			Name: n, ExternalTrafficPolicy: policy, Ports: []cluster.Port{{Protocol: corev1.ProtocolTCP, Port: port}},
		},
		Endpoints: plantest.Endpoints("", 80,
			cluster.Endpoint{Node: "n1", Addr: netip.MustParseAddr(pod), Ready: true, Serving: true}),
	})
	s.Assignments = s.Assignments.With(cluster.Assignment{Addr: netip.MustParseAddr(addr), Service: n, Pool: "lan"})
}

func routesText(routes bgp.Routes) string {
	var words []string
	for r := range routes.All() {
		words = append(words, r.String())
	}
	return strings.Join(words, "; ")
}

// What is announced in place of one address, and what is not.
func TestAggregates(t *testing.T) {
	const cl, local = corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	by := func(length int, peers ...string) *cluster.Advertisement {
		return &cluster.Advertisement{Name: "a" + strings.Join(peers, ""), Length4: length, Length6: 128, Peers: peers}
	}
	for _, tt := range []struct {
		name    string
		adverts []*cluster.Advertisement
		give    func(*cluster.Snapshot)
		want    string
		says    string
	}{
		{"none", nil, func(s *cluster.Snapshot) { give(s, "a", "192.0.2.5", cl, 80) }, "",
			"not announced: AddressPool lan has spec.announce Advertised, and no BGPAdvertisement or " +
				"L2Advertisement selects it"},
		{"none is needed", nil, func(s *cluster.Snapshot) {
			s.Pools[0].Announce = cluster.AnnounceBGP
			give(s, "a", "192.0.2.5", cl, 80)
		}, "192.0.2.5/32", "to be announced to tor1"},
		{"none applies", []*cluster.Advertisement{by(24, "tor1")}, func(s *cluster.Snapshot) {
			s.Pools[0].Announce = cluster.AnnounceBGP
			give(s, "a", "192.0.2.5", cl, 80)
		}, "192.0.2.5/32", "to be announced to tor1, tor2"},
		{"one", []*cluster.Advertisement{by(24)}, func(s *cluster.Snapshot) {
			give(s, "a", "192.0.2.5", cl, 80)
			give(s, "b", "192.0.2.6", cl, 80)
		}, "192.0.2.0/24", "to be announced to tor1, tor2 as part of 192.0.2.0/24"},
		{"one in two", []*cluster.Advertisement{by(30)}, func(s *cluster.Snapshot) {
			give(s, "a", "192.0.2.2", cl, 80)
			give(s, "b", "192.0.2.6", cl, 80)
		}, "192.0.2.0/30; 192.0.2.4/30", "as part of 192.0.2.4/30"},
		{"with the address as well", []*cluster.Advertisement{by(24, "tor1"), by(32, "tor2")},
			func(s *cluster.Snapshot) {
				give(s, "a", "192.0.2.5", cl, 80)
			}, "192.0.2.0/24 to tor1; 192.0.2.5/32 to tor2",
			"to be announced to tor1 as part of 192.0.2.0/24, and to tor2"},
		{"the same to all", []*cluster.Advertisement{by(24, "tor1"), by(24, "tor2")},
			func(s *cluster.Snapshot) { give(s, "a", "192.0.2.5", cl, 80) },
			"192.0.2.0/24", "to be announced to tor1, tor2 as part of 192.0.2.0/24"},
		{"Local", []*cluster.Advertisement{by(24)}, func(s *cluster.Snapshot) { give(s, "a", "192.0.2.5", local, 80) },
			"192.0.2.5/32", "to be announced to tor1, tor2, not as part of 192.0.2.0/24: " +
				"externalTrafficPolicy of shop/a is Local"},
		{"shared with a Local one", []*cluster.Advertisement{by(24)}, func(s *cluster.Snapshot) {
			give(s, "a", "192.0.2.5", cl, 80)
			give(s, "b", "192.0.2.5", local, 81)
		}, "192.0.2.5/32", "externalTrafficPolicy of shop/b is Local"},
		{"a pod network in it", []*cluster.Advertisement{{Name: "a", Length4: 32, Length6: 0}, by(0)},
			func(s *cluster.Snapshot) { give(s, "a", "192.0.2.5", cl, 80) },
			"192.0.2.5/32", "the aggregate 0.0.0.0/0 of BGPAdvertisement a contains this node's address 10.0.0.11"},
		{"no such peer", []*cluster.Advertisement{by(24, "tor3")},
			func(s *cluster.Snapshot) { give(s, "a", "192.0.2.5", cl, 80) },
			"", "not announced: no router that BGPAdvertisement ator3 names has a session with this node"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			snap := advertWorld(tt.adverts...)
			tt.give(snap)
			d := Decide(Config{Node: "n1"}, snap)
			if got := routesText(d.BGP.Routes); got != tt.want {
				t.Errorf("announces %s\nwant      %s", got, tt.want)
			}
			last := d.Addresses.At(d.Addresses.Len() - 1)
			if !strings.Contains(d.Why(last.Addr, "bgp"), tt.says) {
				t.Errorf("says %q, want %q", d.Why(last.Addr, "bgp"), tt.says)
			}
			for r := range d.BGP.Routes.All() {
				if !netipPrefixesContain(d.Proxy.Owned, r.Prefix) {
					t.Errorf("%s is announced, and its unused addresses are not owned: %v", r.Prefix, d.Proxy.Owned)
				}
			}
		})
	}
}

func netipPrefixesContain(list []netip.Prefix, p netip.Prefix) bool {
	var b netipx.IPSetBuilder
	for _, q := range list {
		b.AddPrefix(q)
	}
	set, err := b.IPSet()
	return err == nil && set.ContainsPrefix(p)
}

// An aggregate never contains a prefix that is not for Services: traffic to it would be
// rejected.
func TestAggregateExcludesForeignPrefixes(t *testing.T) {
	for addr, what := range map[string]string{
		"2001:db8::9": "the loopback address (::1)",
		"10.0.0.9":    "this node's address 10.0.0.11",
		"10.244.1.9":  "the pod network 10.244.1.0/24",
		"10.0.1.9":    "the address 10.0.1.1 of router tor1",
		"172.16.0.9":  "the pod network 172.16.0.0/16",
	} {
		snap := advertWorld(&cluster.Advertisement{Name: "a", Length4: 25, Length6: 1})
		give(snap, "a", addr, corev1.ServiceExternalTrafficPolicyCluster, 80)
		c := Config{Node: "n1"}
		c.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}
		d := Decide(c, snap)
		if got := d.BGP.Routes.Slice()[0].Prefix; got != sortedset.HostPrefix(netip.MustParseAddr(addr)) {
			t.Errorf("announces %s", got)
		}
		if r := d.ReasonsOf(d.Addresses.At(0)); r[len(r)-1].Code != cluster.AggregateRefused ||
			!strings.Contains(r[len(r)-1].Message, what) {
			t.Errorf("says %v, want %q", r, what)
		}
	}
}
