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

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

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
			to := netip.AddrPortFrom(proxytest.At("vip", family), port)
			if got := l.Probe(l.Ns(from), network, to, want); got != want {
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
		mustSet(t, p, proxytest.PacketState(LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24",
			"fd00:244:1::/64")}))
		l.Node.Addr("lo", "192.0.2.77/32", "2001:db8::77/128")
		before := l.Forwarded(l.Router)
		for family := range state.SetID(2) {
			other, mine := proxytest.At("other", family), proxytest.At("mine", family)
			l.Serve(l.Node, netip.AddrPortFrom(mine, 7070))
			for _, from := range []*nstest.NS{l.Client, l.Pod2, l.Node} {
				for _, network := range []string{"tcp", "udp"} {
					if from == l.Node && network == "udp" {
						// What a host sends comes back by the router. The kernel
						// answers only TCP from an address of its own.
						continue
					}
					want := "refused"
					if from == l.Node && other.Is4() && testMode == ModeIPTables {
						want = "silence" // it comes back from the router as a martian, before filter chains
					}
					if got := l.Probe(from, network, netip.AddrPortFrom(other, 80), want); got != want {
						t.Errorf("%s to %s %s: %s; want %s", from.Name, network, other, got, want)
					}
					want = "node saw " + from.Name
					if from == l.Node {
						want = "node saw mine"
					}
					if got := l.Probe(from, network, netip.AddrPortFrom(mine, 7070), want); got != want {
						t.Errorf("%s to %s %s: %s; want %s", from.Name, network, mine, got, want)
					}
				}
				if from == l.Node {
					continue
				}
				if got := l.Ping(from, other, "refused"); got != "refused" {
					t.Errorf("%s pings %s: %s; want refused", from.Name, other, got)
				}
			}
			for _, f := range l.flows(other) {
				// The node's own packets are tracked before they leave it.
				if f.Client != proxytest.At("node", family) {
					t.Errorf("a flow from %s to %s is tracked", f.Client, other)
				}
			}
		}
		// A packet that loops is forwarded up to 64 times.
		if n := l.Forwarded(l.Router) - before; n > 60 {
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
		pool := proxytest.PacketState(LocalClients{})
		pool.Owned = proxytest.Prefixes("192.0.2.0/28", "2001:db8::/124")
		aggregate := pool
		aggregate.Owned = proxytest.Prefixes("192.0.2.0/24", "2001:db8::/64")
		mustSet(t, p, pool)
		open := l.sessions("tcp", proxytest.PortRemote, "client", "pod2")
		// asked is how many packets the router forwards for a request.
		asked := func(to netip.AddrPort, want string) (packets int) {
			t.Helper()
			before := l.Forwarded(l.Router)
			for _, network := range []string{"tcp", "udp"} {
				if got := l.Probe(l.Client, network, to, want); (got == "refused") != (want == "refused") {
					t.Errorf("owning %s, %s to %s: %s; want %s", p.rules.have.Owned, network, to, got, want)
				}
			}
			return l.Forwarded(l.Router) - before
		}
		for _, s := range []State{pool, aggregate, pool, aggregate} {
			mustSet(t, p, s)
			checkKernel(t, s)
			want := "silence"
			if s.Owned[0].Contains(proxytest.At("other", 0)) {
				want = "refused"
			}
			for family := range state.SetID(2) {
				n := asked(netip.AddrPortFrom(proxytest.At("other", family), 80), want)
				// Only IPv4 is counted; a looping packet is forwarded some 30 times.
				if family == 0 && (n > 20) != (want == "silence") {
					t.Errorf("owning %s: the router forwarded %d packets; want %s", s.Owned, n, want)
				}
				if got := l.Ping(l.Client, proxytest.At("other", family), want); want == "refused" && got != want {
					t.Errorf("owning %s: ping: %s", s.Owned, got)
				}
				if flows := l.flows(proxytest.At("other", family)); want == "refused" && len(flows) > 0 {
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
		vip := netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortUnserved)
		l.Probe(l.Client, "tcp", vip, "silence")
		if n := l.Forwarded(l.Router); n < 30 {
			t.Fatalf("without rules the router forwarded %d packets; the lab does not loop", n)
		}
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		s.Owned = nil
		mustSet(t, p, s)
		before := l.Forwarded(l.Router)
		for _, network := range []string{"tcp", "udp"} {
			if got := l.Probe(l.Client, network, vip, "refused"); got != "refused" {
				t.Errorf("%s: %s; want refused", network, got)
			}
		}
		// Without ports, such as any protocol that is not served.
		if n := l.Forwarded(l.Router) - before; n > 6 {
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
				for _, from := range []*nstest.NS{l.Client, l.Pod1, l.Pod3, l.Node} {
					if want == "refused" && from == l.Node {
						continue // its packets leave, and come back from the router
					}
					if got := l.Ping(from, proxytest.At("vip", family), want); got != want {
						t.Errorf("%s pings %s: %s; want %s", from.Name, proxytest.At("vip", family), got, want)
					}
				}
			}
		}
		s := proxytest.PacketState(LocalClients{})
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
		cidrs := proxytest.Prefixes("10.244.1.12/32", "fd00:244:1::12/128") // pod2
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
			s := proxytest.PacketState(tc.clients)
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
					vip := proxytest.At("vip", family)
					if got := l.Probe(l.Ns(name), "tcp", netip.AddrPortFrom(vip, proxytest.PortAway),
						away); got != away {
						t.Errorf("%s: %s to %s: %s; want %s", tc.name, name, vip, got, away)
					}
					if got := l.Probe(l.Ns(name), "tcp", netip.AddrPortFrom(vip, proxytest.PortRemote),
						remote); got != remote {
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
		proxytest.NFT(t, `table ip kube-proxy {
			chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr 192.0.2.1 meta l4proto { tcp, udp } dnat to 10.244.2.11:8080; }
			chain nat-output { type nat hook output priority -100; ip daddr 192.0.2.1 meta l4proto { tcp, udp } dnat to 10.244.2.11:8080; }
			chain nat-postrouting { type nat hook postrouting priority srcnat; ip daddr 10.244.2.11 masquerade; }
		}`)
		vip := netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal)
		if got := l.Probe(l.Client, "tcp", vip, ""); got != "remote saw node" {
			t.Fatalf("before: %s", got)
		}
		p := newProxy(t)
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		for port, want := range map[uint16]string{
			proxytest.PortLocal: "pod1 saw client", proxytest.PortNone: "refused", proxytest.PortAway: "silence",
		} {
			for _, network := range []string{"tcp", "udp"} {
				if got := l.Probe(l.Client, network, netip.AddrPortFrom(vip.Addr(), port), want); got != want {
					t.Errorf("client to %s port %d: %s; want %s", network, port, got, want)
				}
			}
		}
		if got := l.Probe(l.Node, "tcp", vip, ""); got != "pod1 saw node" {
			t.Errorf("node: %s", got)
		}
	})
}

// A process of the host that chose its source address keeps it.
func TestHostKeepsItsSource(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		l.Node.Addr("lo", "192.0.2.77/32", "2001:db8::77/128")
		for family := range state.SetID(2) {
			source := &net.TCPAddr{IP: proxytest.At("mine", family).AsSlice()}
			for _, port := range []uint16{proxytest.PortRemote, proxytest.PortMasq} {
				var c net.Conn
				var err error
				l.Node.Do(func() {
					d := net.Dialer{LocalAddr: source, Timeout: proxytest.Patience("")}
					c, err = d.Dial("tcp", netip.AddrPortFrom(proxytest.At("vip", family), port).String())
				})
				if err != nil {
					t.Fatal(err)
				}
				if got := l.Ask(c); got != "remote saw mine" {
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
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		vip := proxytest.At("vip", 0)
		conn := l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(vip, proxytest.PortLocal))
		if got := l.Ask(conn); got != "pod1 saw client" {
			t.Fatal(got)
		}
		raw := l.RawTCP(l.Client)
		port := conn.LocalAddr().(*net.TCPAddr).Port
		raw.Send(t, vip, uint16(port), proxytest.PortLocal, 0x03)
		if raw.Reset("silence") {
			t.Error("an invalid packet was answered by RST")
		}
		if got := l.Ask(conn); got != "pod1 saw client" {
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
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		for _, to := range []netip.AddrPort{
			netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortUnserved),
			netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortNone),
			netip.AddrPortFrom(proxytest.At("other", 0), proxytest.PortLocal),
		} {
			raw := l.RawTCP(l.Client)
			if got := l.Probe(l.Client, "tcp", to, "refused"); got != "refused" || !raw.Reset("refused") {
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
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		for _, name := range []string{"vip", "other"} {
			target := proxytest.At(name, 1)
			body := append(make([]byte, 4), target.AsSlice()...)
			m := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: body}}
			if got := l.Icmp6(l.Client, target, m); got != "silence" {
				t.Errorf("solicitation of %s: %s; want silence", target, got)
			}
			m = icmp.Message{Type: ipv6.ICMPTypeNodeInformationQuery, Body: &icmp.RawBody{Data: body}}
			if got := l.Icmp6(l.Client, target, m); got != "refused" {
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
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		vip := proxytest.At("vip", 0)
		local := l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(vip, proxytest.PortLocal))
		remote := l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(vip, proxytest.PortRemote))
		check := func(when string) {
			t.Helper()
			if a, b := l.Ask(local), l.Ask(remote); a != "pod1 saw client" || b != "remote saw node" {
				t.Errorf("%s: %s; %s", when, a, b)
			}
		}
		check("at first")
		for _, miss := range []Miss{Drop, Reject} {
			mustSet(t, p, without(s, miss))
			swept(t, p)
			check("without backends, miss " + miss.String())
			want := map[Miss]string{Drop: "silence", Reject: "refused"}[miss]
			if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(vip, proxytest.PortLocal), want); got != want {
				t.Errorf("a new connection: %s; want %s", got, want)
			}
		}
		// The kernel tracks and translates for as long as any table needs it.
		proxytest.NFT(t, `table ip other { chain postrouting { type nat hook postrouting priority srcnat; oifname "none" masquerade; }; }`)
		if err := Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		check("without rules")
	})
}

// without is s with no backends for new flows.
func without(s State, miss Miss) State {
	out := s
	out.VIPs = VIPs{}
	for v := range s.VIPs.All() {
		w := &VIP{Addr: v.Addr}
		for _, f := range v.Frontends {
			f.Draining = drained(&f)
			f.External, f.Internal = Target{Miss: miss}, Target{Miss: miss}
			w.Frontends = append(w.Frontends, f)
		}
		out.VIPs = proxytest.WithVIPs(out.VIPs, w)
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
