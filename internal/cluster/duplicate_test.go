package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// testPeer is a BGPPeer as text: its name, the second in which it was created, where its router
// is, and what else.
func testPeer(t *testing.T, text string) *Peer {
	t.Helper()
	p := &Peer{}
	var age int
	var router, more string
	if n, err := fmt.Sscan(text+" -", &p.Name, &age, &router, &more); n < 4 || err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if age > 0 {
		p.Created = time.Unix(int64(age), 0)
	}
	switch kind, value, _ := strings.Cut(router, "="); kind {
	case "on":
		p.Interface = value
	case "gateway":
		family, addr, _ := strings.Cut(value, "@")
		p.DefaultGateway = corev1.IPFamily(family)
		if addr != "" {
			p.PeerAddress = netip.MustParseAddr(addr)
		}
	default:
		p.PeerAddress = netip.MustParseAddr(router)
	}
	switch kind, value, _ := strings.Cut(more, "="); kind {
	case "rack":
		p.NodeSelector = Selecting(labels.SelectorFromSet(labels.Set{"rack": value}))
	case "device":
		p.Device = value
	case "port":
		p.PeerPort = 1179
	}
	return p
}

// The older of two BGPPeers with one router has the session, on the nodes that both select.
func TestDuplicates(t *testing.T) {
	node := &Node{Name: "n1", Labels: labels.Set{"rack": "one"}}
	for _, tt := range []struct {
		name  string
		peers []string
		node  *Node
		want  string // newer: older
	}{
		{"none", nil, node, ""},
		{"two routers", []string{"a 1 192.0.2.1", "b 2 192.0.2.2"}, node, ""},
		{"the older counts", []string{"a 2 192.0.2.1", "b 1 192.0.2.1"}, node, "a: b"},
		{"the first by name, of one age", []string{"a 1 192.0.2.1", "b 1 192.0.2.1"}, node, "b: a"},
		{"and without an age", []string{"a 0 192.0.2.1", "b 0 192.0.2.1"}, node, "b: a"},
		{"an age comes before none", []string{"a 0 192.0.2.1", "b 9 192.0.2.1"}, node, "a: b"},
		{"three", []string{"a 3 192.0.2.1", "b 1 192.0.2.1", "c 2 192.0.2.1"}, node, "a: b, c: b"},
		{"two pairs", []string{"a 1 192.0.2.1", "b 2 192.0.2.1", "c 2 192.0.2.2", "d 1 192.0.2.2"}, node, "b: a, c: d"},

		{"another port is the same router", []string{"a 1 192.0.2.1", "b 2 192.0.2.1 port"}, node, "b: a"},
		{"another device too", []string{"a 1 192.0.2.1 device=red", "b 2 192.0.2.1 device=blue"}, node, "b: a"},
		{"one address on two links is not", []string{"a 1 fe80::1%eth0", "b 2 fe80::1%eth1"}, node, ""},
		{"one on one link is", []string{"a 1 fe80::1%eth0", "b 2 fe80::1%eth0"}, node, "b: a"},

		{"one interface", []string{"a 2 on=eth0", "b 1 on=eth0"}, node, "a: b"},
		{"two interfaces", []string{"a 1 on=eth0", "b 2 on=eth1"}, node, ""},

		{"an interface and an address on it", []string{"a 1 on=eth0", "b 2 fe80::1%eth0"}, node, "b: a"},
		{"an address and its interface", []string{"a 2 on=eth0", "b 1 fe80::1%eth0"}, node, "a: b"},
		{"an interface and an address elsewhere", []string{"a 1 on=eth0", "b 2 fe80::1%eth1", "c 3 192.0.2.1"}, node,
			""},
		{"an interface and a gateway on it", []string{"a 1 on=eth0", "b 2 gateway=IPv6@fe80::1%eth0"}, node, "b: a"},
		{"a peer without a session is not older", []string{"a 1 fe80::1%eth0", "b 2 on=eth0", "c 3 fe80::2%eth0"}, node,
			"b: a"},

		{"one unknown gateway", []string{"a 1 gateway=IPv4", "b 2 gateway=IPv4"}, node, "b: a"},
		{"unknown gateways of two families", []string{"a 1 gateway=IPv4", "b 2 gateway=IPv6"}, node, ""},
		{"an unknown gateway and an address", []string{"a 1 gateway=IPv4", "b 2 192.0.2.1"}, node, ""},
		{"a gateway with that address", []string{"a 1 gateway=IPv4@192.0.2.1", "b 2 192.0.2.1"}, node, "b: a"},
		{"an address before the gateway", []string{"a 2 gateway=IPv4@192.0.2.1", "b 1 192.0.2.1"}, node, "a: b"},
		{"a gateway with another", []string{"a 1 gateway=IPv4@192.0.2.9", "b 2 192.0.2.1"}, node, ""},

		{"on two racks", []string{"a 1 192.0.2.1 rack=one", "b 2 192.0.2.1 rack=two"}, node, ""},
		{"the older is on another rack", []string{"a 1 192.0.2.1 rack=two", "b 2 192.0.2.1"}, node, ""},
		{"both on this one", []string{"a 1 192.0.2.1 rack=one", "b 2 192.0.2.1"}, node, "b: a"},
		{"no node", []string{"a 1 192.0.2.1", "b 2 192.0.2.1"}, nil, ""},
	} {
		var peers []*Peer
		for _, text := range tt.peers {
			peers = append(peers, testPeer(t, text))
		}
		var got []string
		for _, d := range Duplicates(peers, tt.node) {
			got = append(got, d.Peer.Name+": "+d.Of.Name)
		}
		if got := strings.Join(got, ", "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// What is said names both objects, the field, its value and what to do.
func TestDuplicateProblems(t *testing.T) {
	node := &Node{Name: "n1"}
	const remedy = ". Delete one of the two, or give them nodeSelectors that never match the same node"
	for _, tt := range []struct{ older, newer, want string }{
		{"a 1 192.0.2.1", "b 2 192.0.2.1",
			`BGPPeer b: spec.peerAddress "192.0.2.1": node n1 has no session by it: BGPPeer a, which is older, names router 192.0.2.1 too` + remedy},
		{"a 0 on=eth0", "b 0 on=eth0",
			`BGPPeer b: spec.interface "eth0": node n1 has no session by it: BGPPeer a, which comes first by name, names the router on interface eth0 too` + remedy},
		{"a 1 192.0.2.1", "b 2 gateway=IPv4@192.0.2.1",
			`BGPPeer b: spec.defaultGateway "IPv4": node n1 has no session by it: BGPPeer a, which is older, names router 192.0.2.1 too` + remedy},
		{"a 1 gateway=IPv6", "b 2 gateway=IPv6",
			`BGPPeer b: spec.defaultGateway "IPv6": node n1 has no session by it: BGPPeer a, which is older, names the default gateway of IPv6 too` + remedy},
		{"a 1 192.0.2.1 device=red", "b 2 192.0.2.1 device=blue",
			`BGPPeer b: spec.peerAddress "192.0.2.1": node n1 has no session by it: BGPPeer a, which is older, names router 192.0.2.1 too, and a node has one session with an address, also where the devices differ` + remedy},
	} {
		all := Duplicates([]*Peer{testPeer(t, tt.newer), testPeer(t, tt.older)}, node)
		if len(all) != 1 {
			t.Errorf("%s, %s: %d duplicates", tt.older, tt.newer, len(all))
		} else if got := all[0].Problem("n1").String(); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}

// An advertisement to a duplicate alone is heard by no router; one to the older BGPPeer as
// well has other problems, if any.
func TestAdvertisementOfDuplicate(t *testing.T) {
	all := Duplicates([]*Peer{testPeer(t, "a 1 192.0.2.1"), testPeer(t, "b 2 192.0.2.1")}, &Node{Name: "n1"})
	for peers, want := range map[string]string{
		"":    "",
		"c":   "",
		"a":   "",
		"a b": "",
		"b":   `BGPAdvertisement x: spec.peers "b": node n1 announces it to no router: BGPPeer a, which is older, names router 192.0.2.1 too. Name a instead`,
		"b c": `BGPAdvertisement x: spec.peers "b": node n1 announces it to no router: BGPPeer a, which is older, names router 192.0.2.1 too. Name a instead`,
	} {
		a := &Advertisement{Name: "x", Peers: strings.Fields(peers)}
		got := ""
		if d, ok := a.NamesOnly(all); ok {
			got = d.AdvertisementProblem(a, "n1").String()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", peers, got, want)
		}
	}
}
