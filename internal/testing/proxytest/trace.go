package proxytest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Packet is what rules can see of one.
type Packet struct {
	proto    uint8
	icmp     int // type, of ICMP
	Src, Dst netip.AddrPort
	in, out  string // interfaces; in is empty for a process of the host
	mark     uint32
	priority string // of class MAJOR:MINOR; empty: none
	// midstream: it is of TCP and begins no connection. To conntrack it is new all the same.
	Midstream bool
	ct        tracked
}

// tracked is what conntrack knows of the packet's flow.
type tracked struct {
	state string // new, established or invalid
	orig  netip.AddrPort
	dnat  bool
	snat  bool
}

// IP protocol numbers of the echo requests.
const (
	protoICMP   = 1
	protoICMPv6 = 58
)

// A fate is what a hook does with a packet.
type fate uint8

const (
	passes fate = iota
	dropped
	reset
	unreachable
)

// Rules are an interpreter with the rules of a node. It runs all chains of a hook
// in the order of their priorities, and may change the packet.
type Rules interface {
	hook(name string, p *Packet, n *NodeView, c *chooser) fate
}

// A NodeView is what rules ask the kernel about a node.
type NodeView struct {
	local  map[netip.Addr]bool
	routes []viewRoute               // the first that matches is taken
	addrs  map[string][]netip.Addr   // of an interface, the first of a family counts
	serves map[netip.AddrPort]string // which process listens where
	names  map[netip.Addr]string
}

type viewRoute struct {
	to    netip.Prefix
	iface string
}

func (n *NodeView) route(to netip.Addr) string {
	if n.local[to] {
		return "lo"
	}
	for _, r := range n.routes {
		if r.to.Contains(to) {
			return r.iface
		}
	}
	return ""
}

// addr is the address that the kernel takes of an interface.
func (n *NodeView) addr(iface string, like netip.Addr) netip.Addr {
	for _, a := range n.addrs[iface] {
		if a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// A chooser makes choices that are random in the kernel. Run again and again, it
// makes all of them.
type chooser struct{ taken, of []int }

func (c *chooser) choose(n int) int {
	c.of = append(c.of, n)
	if len(c.taken) < len(c.of) {
		c.taken = append(c.taken, 0)
	}
	return c.taken[len(c.of)-1]
}

// next prepares the choices of another run and reports whether there is one.
func (c *chooser) next() bool {
	for i := len(c.of) - 1; i >= 0; i-- {
		if c.taken[i]++; c.taken[i] < c.of[i] {
			c.taken, c.of = c.taken[:i+1], nil
			return true
		}
	}
	return false
}

// Trace is all that can become of a packet, in the words of lab.probe, sorted.
func Trace(r Rules, n *NodeView, p Packet) []string {
	var all []string
	var c chooser
	for {
		one := p
		all = append(all, travel(r, n, &one, &c))
		if !c.next() {
			slices.Sort(all)
			return slices.Compact(all)
		}
	}
}

// travel follows one packet until it is delivered or lost.
func travel(r Rules, n *NodeView, p *Packet, c *chooser) string {
	p.ct.orig = p.Dst
	// What leaves for an address behind the router that is routed to this node comes
	// back, and is then no longer the first packet of its flow.
	for lap := range 3 {
		f := cross(r, n, p, c)
		if f == unreachable && lap > 0 && n.local[p.Src.Addr()] && p.Src.Addr().Is4() {
			// It came in with a source of the node's own, to which the kernel sends
			// no ICMP of IPv4. It does send RST.
			return "silence"
		}
		if f == dropped && p.in == "" && p.proto != uint8(state.TCP) {
			return "refused" // by EPERM: the sender learns at once what becomes of a datagram
		}
		if f != passes {
			return fateWords(f, p)
		}
		if p.out != "eth0" || !n.returns(p.Dst.Addr()) {
			return n.arrival(p)
		}
		p.in, p.out, p.ct.state = "eth0", "", "established"
	}
	return "loops"
}

// cross takes a packet through the hooks of the node.
func cross(r Rules, n *NodeView, p *Packet, c *chooser) fate {
	hooks := []string{"prerouting", "forward", "postrouting"}
	if p.in == "" {
		hooks = []string{"output", "postrouting"}
		p.out = n.route(p.Dst.Addr())
	}
	for _, name := range hooks {
		if f := r.hook(name, p, n, c); f != passes {
			return f
		}
		if name == "postrouting" {
			break
		}
		if name == "prerouting" && n.local[p.Src.Addr()] && p.Src.Addr().Is4() {
			return dropped // a martian: it came in with a source of the node's own
		}
		p.out = n.route(p.Dst.Addr())
		if p.in != "" && p.out == "lo" {
			return r.hook("input", p, n, c)
		}
	}
	return passes
}

// returns reports whether the router sends a packet to this address back.
func (n *NodeView) returns(to netip.Addr) bool {
	for _, name := range []string{"vip", "vip2", "other"} {
		for family := range state.SetID(2) {
			if to == At(name, family) {
				return true
			}
		}
	}
	return false
}

func fateWords(f fate, p *Packet) string {
	switch {
	case f == dropped:
		return "silence"
	case f == reset && p.proto != uint8(state.TCP):
		return "RST in answer to what is no TCP"
	case f == unreachable && p.proto == uint8(state.TCP):
		return "TCP refused by ICMP"
	default:
		return "refused"
	}
}

// arrival says who gets a packet and what source it sees.
func (n *NodeView) arrival(p *Packet) string {
	switch p.proto {
	case protoICMP, protoICMPv6:
		if n.local[p.Dst.Addr()] && !p.ct.dnat {
			return "reply of the host"
		}
		return "reply"
	}
	who, ok := n.serves[p.Dst]
	if !ok {
		return "refused" // by the kernel of who has the address
	}
	return who + " saw " + n.name(p.Src.Addr())
}

func (n *NodeView) name(a netip.Addr) string {
	if name, ok := n.names[a]; ok {
		return name
	}
	return a.String()
}

// LabView is the node of a lab.
func LabView() *NodeView {
	n := &NodeView{
		local: make(map[netip.Addr]bool), addrs: make(map[string][]netip.Addr),
		serves: make(map[netip.AddrPort]string), names: make(map[netip.Addr]string),
	}
	for family := range state.SetID(2) {
		for name, both := range LabAddr {
			n.names[netip.MustParseAddr(both[family])] = name
		}
		// Loopback lends its address to no interface, and the kernel takes the next one.
		for iface, name := range map[string]string{
			"eth0": "node", "lo": "node", "cali1": "gateway", "cali2": "gateway", "cni0": "gateway",
		} {
			n.addrs[iface] = append(n.addrs[iface], At(name, family))
			n.local[At(name, family)] = true
		}
		for name, iface := range map[string]string{"pod1": "cali1", "pod2": "cali2", "pod3": "cni0"} {
			a := At(name, family)
			n.routes = append(n.routes, viewRoute{netip.PrefixFrom(a, a.BitLen()), iface})
		}
		for name, ports := range labServes {
			for _, port := range ports {
				n.serves[netip.AddrPortFrom(At(name, family), port)] = name
			}
		}
	}
	n.routes = append(n.routes,
		viewRoute{netip.MustParsePrefix("0.0.0.0/0"), "eth0"}, viewRoute{netip.MustParsePrefix("::/0"), "eth0"})
	return n
}

// bind gives an interface of the node an address, as l.node.Addr does.
func (n *NodeView) bind(iface string, a netip.Addr) {
	n.addrs[iface] = append(n.addrs[iface], a)
	n.local[a] = true
}

// LabPacket is the first packet of a flow from one of the lab's namespaces.
func LabPacket(from, network string, to netip.AddrPort, n *NodeView) (Packet, error) {
	f := state.Family(to.Addr())
	p := Packet{Src: netip.AddrPortFrom(At(from, f), 40000), Dst: to, ct: tracked{state: "new"}}
	switch network {
	case "tcp":
		p.proto = uint8(state.TCP)
	case "udp":
		p.proto = uint8(state.UDP)
	case "sctp":
		p.proto = uint8(state.SCTP)
	case "ping":
		p.proto, p.icmp = protoICMP, 8
		if f == 1 {
			p.proto, p.icmp = protoICMPv6, 128
		}
	default:
		return p, fmt.Errorf("network %q; want tcp, udp, sctp or ping", network)
	}
	switch from {
	case "remote":
		p.Src, p.in = netip.AddrPortFrom(At("far", f), 40000), "eth0"
	case "node":
		// A process gets the address of the route before any rule is asked.
		if n.local[to.Addr()] {
			p.Src = netip.AddrPortFrom(to.Addr(), 40000)
		}
	case "pod1", "pod2":
		p.in = strings.Replace(from, "pod", "cali", 1)
	case "pod3":
		p.in = "cni0"
	default:
		p.in = "eth0"
	}
	return p, nil
}
