package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"

	"github.com/fanfare-lb/fanfare/internal/nstest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Ports of the VIP in packet tests, by what is behind them.
const (
	portLocal    = 80 // externalTrafficPolicy Local, endpoint here
	portRemote   = 81 // Cluster, endpoint on another node
	portAway     = 82 // Local, endpoint on another node
	portNone     = 83 // no endpoint anywhere
	portCluster  = 84 // Cluster, endpoint here
	portHost     = 86 // endpoint is a process of the node
	portMasq     = 87 // internal clients masqueraded too
	portUnserved = 9
)

// packetState is one VIP in each family with all of these ports.
func packetState(clients LocalClients) State {
	s := State{Node: "n1", Clients: clients, Owned: prefixes("192.0.2.0/24", "2001:db8::/64")}
	for family := range state.SetID(2) {
		v := &VIP{Addr: at("vip", family)}
		for _, p := range []Protocol{TCP, UDP, SCTP} {
			v.Frontends = append(v.Frontends, packetFrontends(p, family)...)
		}
		s.VIPs = append(s.VIPs, v)
	}
	return s
}

func packetFrontends(p Protocol, family state.SetID) []Frontend {
	to := func(miss Miss, remote Remote, names ...string) Target {
		return Target{Backends: backends(family, names...), Miss: miss, Remote: remote}
	}
	return []Frontend{
		{Protocol: p, Port: portLocal, External: to(Drop, Preserve, "pod1"), Internal: to(Reject, Preserve, "pod1")},
		{Protocol: p, Port: portRemote, External: to(Reject, Masquerade, "remote"), Internal: to(Reject, Preserve, "remote")},
		{Protocol: p, Port: portAway, External: to(Drop, Preserve), Internal: to(Reject, Preserve, "remote")},
		{Protocol: p, Port: portNone, External: to(Reject, Preserve), Internal: to(Reject, Preserve)},
		{Protocol: p, Port: portCluster, External: to(Reject, Masquerade, "pod1"), Internal: to(Reject, Preserve, "pod1")},
		{Protocol: p, Port: portHost, External: to(Reject, Masquerade, "node"), Internal: to(Reject, Preserve, "node")},
		{Protocol: p, Port: portMasq, External: to(Reject, Masquerade, "remote"), Internal: to(Reject, Masquerade, "remote")},
	}
}

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(all ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// row checks one line of a table over all protocols and families.
func (l *lab) row(t *testing.T, row string) {
	t.Helper()
	var from string
	var port uint16
	if _, err := fmt.Sscan(row, &from, &port); err != nil {
		t.Fatal(err)
	}
	want := strings.Join(strings.Fields(row)[2:], " ")
	for family := range state.SetID(2) {
		for _, network := range []string{"tcp", "udp", "sctp"} {
			to := netip.AddrPortFrom(at("vip", family), port)
			if got := l.probe(l.ns(from), network, to, want); got != want {
				t.Errorf("%s to %s %s: %s; want %s", from, network, to, got, want)
			}
		}
	}
}

// An address in Owned that is no VIP is refused; the node's own addresses
// never are; and nothing loops between node and router.
func TestUnassignedAddresses(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, packetState(LocalClients{CIDRs: prefixes("10.244.1.0/24", "fd00:244:1::/64")}))
		l.node.Addr("lo", "192.0.2.77/32", "2001:db8::77/128")
		before := l.forwarded(l.router)
		for family := range state.SetID(2) {
			other, mine := at("other", family), at("mine", family)
			l.serve(l.node, netip.AddrPortFrom(mine, 7070))
			for _, from := range []*nstest.NS{l.client, l.pod2, l.node} {
				for _, network := range []string{"tcp", "udp"} {
					if from == l.node && network == "udp" {
						// What a host sends comes back by the router. The kernel
						// answers only TCP from an address of its own.
						continue
					}
					want := "refused"
					if from == l.node && other.Is4() && testMode == ModeIPTables {
						want = "silence" // it comes back from the router as a martian, before filter chains
					}
					if got := l.probe(from, network, netip.AddrPortFrom(other, 80), want); got != want {
						t.Errorf("%s to %s %s: %s; want %s", from.Name, network, other, got, want)
					}
					want = "node saw " + from.Name
					if from == l.node {
						want = "node saw mine"
					}
					if got := l.probe(from, network, netip.AddrPortFrom(mine, 7070), want); got != want {
						t.Errorf("%s to %s %s: %s; want %s", from.Name, network, mine, got, want)
					}
				}
				if from == l.node {
					continue
				}
				if got := l.ping(from, other, "refused"); got != "refused" {
					t.Errorf("%s pings %s: %s; want refused", from.Name, other, got)
				}
			}
			for _, f := range l.flows(other) {
				// The node's own packets are tracked before they leave it.
				if f.Client != at("node", family) {
					t.Errorf("a flow from %s to %s is tracked", f.Client, other)
				}
			}
		}
		// A packet that loops is forwarded up to 64 times.
		if n := l.forwarded(l.router) - before; n > 60 {
			t.Errorf("the router forwarded %d packets", n)
		}
	})
}

// An aggregate that is announced attracts what is for addresses of no pool. While it is
// owned they are refused, after that they go round as before, and a connection to an
// address in the midst of it notices nothing.
func TestAggregateWiderThanThePool(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		pool := packetState(LocalClients{})
		pool.Owned = prefixes("192.0.2.0/28", "2001:db8::/124")
		aggregate := pool
		aggregate.Owned = prefixes("192.0.2.0/24", "2001:db8::/64")
		mustSet(t, p, pool)
		open := l.sessions("tcp", portRemote, "client", "pod2")
		// asked is how many packets the router forwards for a request.
		asked := func(to netip.AddrPort, want string) (packets int) {
			t.Helper()
			before := l.forwarded(l.router)
			for _, network := range []string{"tcp", "udp"} {
				if got := l.probe(l.client, network, to, want); (got == "refused") != (want == "refused") {
					t.Errorf("owning %s, %s to %s: %s; want %s", p.have.Owned, network, to, got, want)
				}
			}
			return l.forwarded(l.router) - before
		}
		for _, s := range []State{pool, aggregate, pool, aggregate} {
			mustSet(t, p, s)
			checkKernel(t, s)
			want := "silence"
			if s.Owned[0].Contains(at("other", 0)) {
				want = "refused"
			}
			for family := range state.SetID(2) {
				n := asked(netip.AddrPortFrom(at("other", family), 80), want)
				// Only IPv4 is counted; a looping packet is forwarded some 30 times.
				if family == 0 && (n > 20) != (want == "silence") {
					t.Errorf("owning %s: the router forwarded %d packets; want %s", s.Owned, n, want)
				}
				if got := l.ping(l.client, at("other", family), want); want == "refused" && got != want {
					t.Errorf("owning %s: ping: %s", s.Owned, got)
				}
				if flows := l.flows(at("other", family)); want == "refused" && len(flows) > 0 {
					t.Errorf("owning %s: %v are tracked", s.Owned, flows)
				}
			}
			l.check("through the changes", "", open...)
		}
	})
}

// Refusing an unserved port takes one packet each way.
func TestUnservedPortsDoNotLoop(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		vip := netip.AddrPortFrom(at("vip", 0), portUnserved)
		l.probe(l.client, "tcp", vip, "silence")
		if n := l.forwarded(l.router); n < 30 {
			t.Fatalf("without rules the router forwarded %d packets; the lab does not loop", n)
		}
		p := newProxy(t)
		s := packetState(LocalClients{})
		s.Owned = nil
		mustSet(t, p, s)
		before := l.forwarded(l.router)
		for _, network := range []string{"tcp", "udp"} {
			if got := l.probe(l.client, network, vip, "refused"); got != "refused" {
				t.Errorf("%s: %s; want refused", network, got)
			}
		}
		// Without ports, such as any protocol that is not served.
		if n := l.forwarded(l.router) - before; n > 6 {
			t.Errorf("the router forwarded %d packets for two that were refused", n)
		}
	})
}

func TestPing(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		check := func(want string) {
			t.Helper()
			for family := range state.SetID(2) {
				for _, from := range []*nstest.NS{l.client, l.pod1, l.pod3, l.node} {
					if want == "refused" && from == l.node {
						continue // its packets leave, and come back from the router
					}
					if got := l.ping(from, at("vip", family), want); got != want {
						t.Errorf("%s pings %s: %s; want %s", from.Name, at("vip", family), got, want)
					}
				}
			}
		}
		s := packetState(LocalClients{})
		mustSet(t, p, s)
		check("reply")
		mustSet(t, p, State{Node: "n1", Owned: s.Owned})
		check("refused")
	})
}

// Each way to tell a local client does, alone and with the others.
func TestLocalClients(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		cidrs := prefixes("10.244.1.12/32", "fd00:244:1::12/128") // pod2
		for _, tc := range []struct {
			name       string
			clients    LocalClients
			pod2, pod3 bool // internal
		}{
			{"none", LocalClients{}, false, false},
			{"cidr", LocalClients{CIDRs: cidrs}, true, false},
			{"interface", LocalClients{InterfacePrefix: "cali"}, true, false},
			{"bridge", LocalClients{Bridge: "cni0"}, false, true},
			{"interface and bridge", LocalClients{InterfacePrefix: "cali", Bridge: "cni0"}, true, true},
			{"bridge that the prefix matches", LocalClients{InterfacePrefix: "cn", Bridge: "cni0"}, false, true},
			{"all", LocalClients{CIDRs: cidrs, InterfacePrefix: "eth9", Bridge: "cni0"}, true, true},
			{"a longer name", LocalClients{InterfacePrefix: "cali22", Bridge: "cni"}, false, false},
		} {
			s := packetState(tc.clients)
			mustSet(t, p, s)
			checkKernel(t, s)
			for name, inside := range map[string]bool{"pod2": tc.pod2, "pod3": tc.pod3, "node": true, "client": false} {
				// Behind portAway only internal clients find an endpoint; behind
				// portRemote only they keep their address.
				away, remote := "silence", "remote saw node"
				if inside {
					away, remote = "remote saw "+name, "remote saw "+name
				}
				for family := range state.SetID(2) {
					vip := at("vip", family)
					if got := l.probe(l.ns(name), "tcp", netip.AddrPortFrom(vip, portAway), away); got != away {
						t.Errorf("%s: %s to %s: %s; want %s", tc.name, name, vip, got, away)
					}
					if got := l.probe(l.ns(name), "tcp", netip.AddrPortFrom(vip, portRemote), remote); got != remote {
						t.Errorf("%s: %s to %s: %s; want %s", tc.name, name, vip, got, remote)
					}
				}
			}
		}
	})
}

// Another proxy that translates the VIP too, as kube-proxy does, gets none of
// its flows.
func TestOtherProxyLoses(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		nftables(t, `table ip kube-proxy {
			chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr 192.0.2.1 meta l4proto { tcp, udp } dnat to 10.244.2.11:8080; }
			chain nat-output { type nat hook output priority -100; ip daddr 192.0.2.1 meta l4proto { tcp, udp } dnat to 10.244.2.11:8080; }
			chain nat-postrouting { type nat hook postrouting priority srcnat; ip daddr 10.244.2.11 masquerade; }
		}`)
		vip := netip.AddrPortFrom(at("vip", 0), portLocal)
		if got := l.probe(l.client, "tcp", vip, ""); got != "remote saw node" {
			t.Fatalf("before: %s", got)
		}
		p := newProxy(t)
		mustSet(t, p, packetState(LocalClients{}))
		for port, want := range map[uint16]string{portLocal: "pod1 saw client", portNone: "refused", portAway: "silence"} {
			for _, network := range []string{"tcp", "udp"} {
				if got := l.probe(l.client, network, netip.AddrPortFrom(vip.Addr(), port), want); got != want {
					t.Errorf("client to %s port %d: %s; want %s", network, port, got, want)
				}
			}
		}
		if got := l.probe(l.node, "tcp", vip, ""); got != "pod1 saw node" {
			t.Errorf("node: %s", got)
		}
	})
}

// A process of the host that chose its source address keeps it.
func TestHostKeepsItsSource(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, packetState(LocalClients{}))
		l.node.Addr("lo", "192.0.2.77/32", "2001:db8::77/128")
		for family := range state.SetID(2) {
			source := &net.TCPAddr{IP: at("mine", family).AsSlice()}
			for _, port := range []uint16{portRemote, portMasq} {
				var c net.Conn
				var err error
				l.node.Do(func() {
					d := net.Dialer{LocalAddr: source, Timeout: patience("")}
					c, err = d.Dial("tcp", netip.AddrPortFrom(at("vip", family), port).String())
				})
				if err != nil {
					t.Fatal(err)
				}
				if got := l.ask(c); got != "remote saw mine" {
					t.Errorf("port %d: %s; want remote saw mine", port, got)
				}
				c.Close()
			}
		}
	})
}

// A packet of a connection that conntrack finds wrong, such as one far ahead of
// the window, is not translated. It must vanish: an RST in answer to it could
// end the connection. Here it is one whose flags say SYN and FIN.
func TestInvalidPacketsVanish(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, packetState(LocalClients{}))
		vip := at("vip", 0)
		conn := l.connect(l.client, "tcp", 0, netip.AddrPortFrom(vip, portLocal))
		if got := l.ask(conn); got != "pod1 saw client" {
			t.Fatal(got)
		}
		raw := l.rawTCP(l.client)
		port := conn.LocalAddr().(*net.TCPAddr).Port
		raw.send(t, vip, uint16(port), portLocal, 0x03)
		if raw.reset("silence") {
			t.Error("an invalid packet was answered by RST")
		}
		if got := l.ask(conn); got != "pod1 saw client" {
			t.Errorf("afterwards: %s", got)
		}
	})
}

// TCP is refused by RST, not ICMP, which some systems take for a passing
// trouble and try again.
func TestTCPIsRefusedByReset(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, packetState(LocalClients{}))
		for _, to := range []netip.AddrPort{
			netip.AddrPortFrom(at("vip", 0), portUnserved),
			netip.AddrPortFrom(at("vip", 0), portNone),
			netip.AddrPortFrom(at("other", 0), portLocal),
		} {
			raw := l.rawTCP(l.client)
			if got := l.probe(l.client, "tcp", to, "refused"); got != "refused" || !raw.reset("refused") {
				t.Errorf("%s: %s, and not by RST", to, got)
			}
		}
	})
}

// Neighbour discovery for addresses that are ours is not refused: a router
// probes its neighbour with unicast solicitations, which are the announcer's to
// answer, and an ICMP error would be news to it.
func TestNeighbourDiscoveryIsNotRefused(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, packetState(LocalClients{}))
		for _, name := range []string{"vip", "other"} {
			target := at(name, 1)
			body := append(make([]byte, 4), target.AsSlice()...)
			m := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: body}}
			if got := l.icmp6(l.client, target, m); got != "silence" {
				t.Errorf("solicitation of %s: %s; want silence", target, got)
			}
			m = icmp.Message{Type: ipv6.ICMPTypeNodeInformationQuery, Body: &icmp.RawBody{Data: body}}
			if got := l.icmp6(l.client, target, m); got != "refused" {
				t.Errorf("anything else to %s: %s; want refused", target, got)
			}
		}
	})
}

// A connection goes on when its endpoint gets no new ones, or even the rules go;
// only new ones are refused.
func TestEstablishedConnectionsStay(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := packetState(LocalClients{})
		mustSet(t, p, s)
		vip := at("vip", 0)
		local := l.connect(l.client, "tcp", 0, netip.AddrPortFrom(vip, portLocal))
		remote := l.connect(l.client, "tcp", 0, netip.AddrPortFrom(vip, portRemote))
		check := func(when string) {
			t.Helper()
			if a, b := l.ask(local), l.ask(remote); a != "pod1 saw client" || b != "remote saw node" {
				t.Errorf("%s: %s; %s", when, a, b)
			}
		}
		check("at first")
		for _, miss := range []Miss{Drop, Reject} {
			mustSet(t, p, without(s, miss))
			swept(t, p)
			check("without backends, miss " + miss.String())
			want := map[Miss]string{Drop: "silence", Reject: "refused"}[miss]
			if got := l.probe(l.client, "tcp", netip.AddrPortFrom(vip, portLocal), want); got != want {
				t.Errorf("a new connection: %s; want %s", got, want)
			}
		}
		// The kernel tracks and translates for as long as any table needs it.
		nftables(t, `table ip other { chain postrouting { type nat hook postrouting priority srcnat; oifname "none" masquerade; }; }`)
		if err := Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		check("without rules")
	})
}

// without is s with no backends for new flows.
func without(s State, miss Miss) State {
	out := s
	out.VIPs = nil
	for _, v := range s.VIPs {
		w := &VIP{Addr: v.Addr}
		for _, f := range v.Frontends {
			f.Draining = drained(&f)
			f.External, f.Internal = Target{Miss: miss}, Target{Miss: miss}
			w.Frontends = append(w.Frontends, f)
		}
		out.VIPs = append(out.VIPs, w)
	}
	return out
}

// drained are all backends of a frontend.
func drained(f *Frontend) (all []netip.AddrPort) {
	for _, b := range slices.Concat(f.External.Backends, f.Internal.Backends) {
		all = append(all, b.Addr)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

func (l *lab) ns(name string) *nstest.NS {
	return map[string]*nstest.NS{
		"client": l.client, "node": l.node, "pod1": l.pod1, "pod2": l.pod2, "pod3": l.pod3, "remote": l.remote,
	}[name]
}
