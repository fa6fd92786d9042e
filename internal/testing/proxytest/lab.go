package proxytest

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Lab is a node, n1, in the test's own namespace, and what is around it:
//
//	client --- router --- node --- cali1 pod1
//	              |         |----- cali2 pod2
//	              |         '----- cni0 (bridge) pod3
//	            remote (a pod on node n2, which answers the client directly)
//
// All of it has IPv4 and IPv6. The router has routes for the VIPs,
// 192.0.2.0/24 and 2001:db8::/64, to the node, and the node's default route
// is the router: what the node does not stop loops between them.
type Lab struct {
	T                                              *testing.T
	Node, Router, Client, Pod1, Pod2, Pod3, Remote *nstest.NS
	Names                                          map[netip.Addr]string
	Heard                                          sync.Map // the datagrams that servers got, but for "who?"
}

// LabAddr are the addresses, by the names that expectations use.
var LabAddr = map[string][2]string{
	"client":  {"10.0.1.2", "fd00:1::2"},
	"node":    {"10.0.2.2", "fd00:2::2"},
	"second":  {"10.0.9.9", "fd00:9::9"}, // of the node, where a test adds it
	"remote":  {"10.244.2.11", "fd00:244:2::11"},
	"pod1":    {"10.244.1.11", "fd00:244:1::11"},
	"pod2":    {"10.244.1.12", "fd00:244:1::12"},
	"pod3":    {"10.244.1.13", "fd00:244:1::13"},
	"gateway": {"10.244.1.1", "fd00:244:1::1"}, // the node, towards its pods
	"far":     {"10.0.3.2", "fd00:3::2"},       // node n2, by which remote sends
	"vip":     {"192.0.2.1", "2001:db8::1"},
	"vip2":    {"192.0.2.2", "2001:db8::2"},
	"other":   {"192.0.2.99", "2001:db8::99"}, // in the pool, no VIP
	"mine":    {"192.0.2.77", "2001:db8::77"}, // in the pool by mistake: the node's own
}

// labServes are the ports that the lab answers on, over every protocol.
var labServes = map[string][]uint16{
	"pod1": {8080, 8081}, "pod2": {8080, 8081}, "pod3": {8080, 8081}, "remote": {8080, 8082}, "node": {9090},
}

func At(name string, family state.SetID) netip.Addr {
	return netip.MustParseAddr(LabAddr[name][family])
}

func NewLab(t *testing.T) *Lab {
	t.Helper()
	l := &Lab{T: t, Node: nstest.Node(t), Names: make(map[netip.Addr]string)}
	for name, both := range LabAddr {
		for _, a := range both {
			l.Names[netip.MustParseAddr(a)] = name
		}
	}
	l.Router, l.Client = nstest.New(t, "router"), nstest.New(t, "client")
	l.Pod1, l.Pod2, l.Pod3, l.Remote = nstest.New(t, "pod1"), nstest.New(t, "pod2"), nstest.New(t, "pod3"),
		nstest.New(t, "remote")
	l.uplinks()
	l.pod(l.Pod1, "cali1")
	l.pod(l.Pod2, "cali2")
	nstest.Link(t, l.Node, "port3", l.Pod3, "eth0")
	l.Node.Bridge("cni0", "port3")
	l.Node.Hairpin("port3")
	l.podAddresses(l.Pod3, "cni0")
	for name, ports := range labServes {
		for _, port := range ports {
			for family := range state.SetID(2) {
				l.Serve(l.Ns(name), netip.AddrPortFrom(At(name, family), port))
			}
		}
	}
	return l
}

// uplinks joins client, node and remote with the router.
func (l *Lab) uplinks() {
	l.T.Helper()
	for i, ns := range []*nstest.NS{l.Client, l.Node, l.Remote} {
		port := fmt.Sprintf("eth%d", i+1)
		nstest.Link(l.T, l.Router, port, ns, "eth0")
		l.Router.Addr(port, fmt.Sprintf("10.0.%d.1/24", i+1), fmt.Sprintf("fd00:%d::1/64", i+1))
		ns.Addr("eth0", fmt.Sprintf("10.0.%d.2/24", i+1), fmt.Sprintf("fd00:%d::2/64", i+1))
		ns.Route("0.0.0.0/0", fmt.Sprintf("10.0.%d.1", i+1), "")
		ns.Route("::/0", fmt.Sprintf("fd00:%d::1", i+1), "")
	}
	l.Router.Forward()
	l.Node.Forward()
	l.Remote.Addr("lo", "10.244.2.11/32", "fd00:244:2::11/128") // never its source by itself
	for _, ns := range []*nstest.NS{l.Node, l.Router} {
		// Tests are refused more often than a kernel likes to say so: limit no type
		// of ICMP, or one that there is not.
		ns.Sysctl("ipv4.icmp_ratemask", "0")
		ns.Sysctl("ipv6.icmp.ratemask", "255")
	}
	for prefix, via := range map[string]string{
		"192.0.2.0/24": "10.0.2.2", "2001:db8::/64": "fd00:2::2",
		"10.244.1.0/24": "10.0.2.2", "fd00:244:1::/64": "fd00:2::2",
		"10.244.2.0/24": "10.0.3.2", "fd00:244:2::/64": "fd00:3::2",
	} {
		l.Router.Route(prefix, via, "")
	}
}

// pod joins a pod to the node by a routed veth pair.
func (l *Lab) pod(ns *nstest.NS, iface string) {
	l.T.Helper()
	nstest.Link(l.T, l.Node, iface, ns, "eth0")
	l.podAddresses(ns, iface)
}

func (l *Lab) podAddresses(ns *nstest.NS, iface string) {
	l.T.Helper()
	l.Node.Addr(iface, "10.244.1.1/32", "fd00:244:1::1/128")
	for family, bits := range []int{32, 128} {
		a := LabAddr[ns.Name][family]
		ns.Addr("eth0", fmt.Sprintf("%s/%d", a, bits))
		l.Node.Route(fmt.Sprintf("%s/%d", a, bits), "", iface)
		ns.Route([]string{"0.0.0.0/0", "::/0"}[family], LabAddr["gateway"][family], "eth0")
	}
}

// Backends are targets at pods by name, on port 8080.
func Backends(family state.SetID, names ...string) []state.Backend {
	var all []state.Backend
	for _, name := range names {
		b := state.Backend{Addr: netip.AddrPortFrom(At(name, family), 8080), Node: "n1"}
		switch name {
		case "remote":
			b.Node = "n2"
		case "node":
			b.Addr = netip.AddrPortFrom(b.Addr.Addr(), 9090)
		}
		all = append(all, b)
	}
	return all
}

func (l *Lab) Ns(name string) *nstest.NS {
	return map[string]*nstest.NS{
		"client": l.Client, "node": l.Node, "pod1": l.Pod1, "pod2": l.Pod2, "pod3": l.Pod3, "remote": l.Remote,
	}[name]
}
