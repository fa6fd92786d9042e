package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// snatState is packetState with a policy for sources.
func snatState(s SNAT) State {
	out := proxytest.PacketState(LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64")})
	out.SNAT = s
	return out
}

// second gives the node another address, which the router knows.
func (l *lab) second() {
	l.T.Helper()
	for family, bits := range []int{32, 128} {
		prefix := fmt.Sprintf("%s/%d", proxytest.LabAddr["second"][family], bits)
		l.Node.Addr("lo", prefix)
		l.Router.Route(prefix, proxytest.LabAddr["node"][family], "")
	}
}

// sourceSeen is the source that a backend sees of a flow from a port, which is
// another one each time.
func (l *lab) sourceSeen(from *nstest.NS, network string, port int, to netip.AddrPort) netip.AddrPort {
	l.T.Helper()
	c := l.Connect(from, network, port, to)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(proxytest.Patience("")))
	buf := make([]byte, 128)
	_, err := c.Write([]byte("who?"))
	n := 0
	if err == nil {
		n, err = c.Read(buf)
	}
	if err != nil {
		l.T.Fatalf("%s %s: %v", network, to, err)
	}
	_, seen, _ := strings.Cut(string(buf[:n]), " saw ")
	a := netip.MustParseAddrPort(seen)
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// The source port of a replaced source is kept or another one, as the policy says,
// whether the kernel chooses the address or the policy does.
func TestSNATPorts(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		l.second()
		port := 4400
		for _, from := range []string{"node", "second"} {
			for _, ports := range []Ports{PortKept, PortRandom, PortFullyRandom} {
				s := SNAT{Ports: ports}
				if from == "second" {
					s.Sources = []netip.Addr{proxytest.At(from, 0), proxytest.At(from, 1)}
				}
				mustSet(t, p, snatState(s))
				checkKernel(t, snatState(s))
				for family := range state.SetID(2) {
					for _, network := range []string{"tcp", "udp"} {
						port++
						got := l.sourceSeen(l.Client, network, port,
							netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortRemote))
						if got.Addr() != proxytest.At(from, family) ||
							(got.Port() == uint16(port)) != (ports == PortKept) {
							t.Errorf("ports %s, %s from port %d: the backend sees %s", ports, network, port, got)
						}
					}
				}
			}
		}
	})
}

// A chosen source is used for all that is replaced, hairpins too, and for nothing
// else. It takes effect for new flows; open flows keep theirs.
func TestSNATSource(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		l.second()
		mustSet(t, p, snatState(SNAT{}))
		var open []net.Conn
		for family := range state.SetID(2) {
			for _, network := range []string{"tcp", "udp"} {
				open = append(open, l.Connect(l.Client, network, 0,
					netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortRemote)))
			}
		}
		still := func(when string) {
			t.Helper()
			for _, c := range open {
				if got := l.Ask(c); got != "remote saw node" {
					t.Errorf("an open flow %s: %s", when, got)
				}
			}
		}
		still("at first")
		mustSet(t, p, snatState(SNAT{Sources: []netip.Addr{proxytest.At("second", 0), proxytest.At("second", 1)}}))
		for _, row := range []string{
			"client 80 pod1 saw client",
			"client 81 remote saw second",
			"pod2 81 remote saw pod2",
			"pod2 87 remote saw second",
			"pod1 80 pod1 saw second",
			"node 87 remote saw node",
		} {
			l.row(t, row)
		}
		still("after the policy changed")
		// One family only: the other goes by the default.
		mustSet(t, p, snatState(SNAT{Sources: []netip.Addr{proxytest.At("second", 1)}}))
		for family, want := range []string{"remote saw node", "remote saw second"} {
			if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(proxytest.At("vip", state.SetID(family)),
				proxytest.PortRemote), want); got != want {
				t.Errorf("family %d: %s; want %s", family, got, want)
			}
		}
		still("after it changed again")
	})
}

// Backends in networks that are never masqueraded to see the client itself. A pod
// that meets itself does not.
func TestSNATNever(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		mustSet(t, p, snatState(SNAT{Never: proxytest.Prefixes("10.244.0.0/16", "fd00:244::/32")}))
		for family := range state.SetID(2) {
			// The lab's remote answers the client directly, so ask it.
			heard := l.listen(l.Remote, netip.AddrPortFrom(proxytest.At("remote", family), 8081))
			s := snatState(SNAT{Never: proxytest.Prefixes("10.244.0.0/16", "fd00:244::/32")})
			to := Target{
				Backends: []Backend{{Addr: netip.AddrPortFrom(proxytest.At("remote", family), 8081), Node: "n2"}},
				Remote:   Masquerade,
			}
			vip := proxytest.At("vip", family)
			s.VIPs = proxytest.VIPsOf(&VIP{
				Addr: vip, Frontends: []Frontend{{Protocol: UDP, Port: 88, External: to, Internal: to}},
			})
			for _, tc := range []struct {
				never []netip.Prefix
				want  string
			}{
				{proxytest.Prefixes("10.244.0.0/16", "fd00:244::/32"), "client"},
				{proxytest.Prefixes("10.245.0.0/16", "fd00:245::/32"), "node"},
				{nil, "node"},
			} {
				s.SNAT.Never = tc.never
				mustSet(t, p, s)
				c := l.Connect(l.Client, "udp", 0, netip.AddrPortFrom(vip, 88))
				if _, err := c.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-heard:
					if l.Names[got] != tc.want {
						t.Errorf("never %v: the backend sees %s; want %s", tc.never, got, tc.want)
					}
				case <-time.After(proxytest.Patience("")):
					t.Errorf("never %v: nothing arrives", tc.never)
				}
			}
		}
		mustSet(t, p, snatState(SNAT{Never: proxytest.Prefixes("10.244.0.0/16", "fd00:244::/32")}))
		l.row(t, "pod1 80 pod1 saw gateway")
	})
}

// listen tells the sources of the datagrams that come for an address.
func (l *lab) listen(ns *nstest.NS, on netip.AddrPort) <-chan netip.Addr {
	l.T.Helper()
	var c net.PacketConn
	var err error
	ns.Do(func() { c, err = net.ListenPacket("udp", on.String()) })
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { c.Close() })
	heard := make(chan netip.Addr, 16)
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			heard <- from.(*net.UDPAddr).AddrPort().Addr().Unmap()
		}
	}()
	return heard
}

// A mark is set on what gets a new source, and leaves the bits of others as they
// are. With kube-proxy's mark, kube-proxy's rule finds the flow translated already.
func TestSNATMark(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		l.second()
		proxytest.NFT(t, `table ip other {
			set seen { type ipv4_addr . mark; flags dynamic; size 64; }
			chain before { type filter hook prerouting priority mangle; meta mark set 0x00800001; }
			chain kube-proxy { type nat hook postrouting priority srcnat; meta mark & 0x4000 == 0x4000 masquerade fully-random; }
			chain after { type filter hook postrouting priority 300; ct state new update @seen { ip daddr . meta mark }; }
		}`)
		vip := proxytest.At("vip", 0)
		for _, tc := range []struct {
			mark          Mark
			remote, local uint32 // marks of flows to the one and the other
		}{
			{Mark{}, 0x00800001, 0x00800001},
			{Mark{Value: 0x4000, Mask: 0x4000}, 0x00804001, 0x00800001},
			{Mark{Value: 0x1200, Mask: 0x800ff00}, 0x00801201, 0x00800001},
			{Mark{Mask: 0x00f00000}, 0x00000001, 0x00800001},
			{Mark{Value: 0x4000, Mask: 0xffffffff}, 0x4000, 0x00800001},
		} {
			proxytest.NFT(t, "flush set ip other seen")
			s := snatState(SNAT{Mark: tc.mark, Sources: []netip.Addr{proxytest.At("second", 0)}})
			mustSet(t, p, s)
			checkKernel(t, s)
			for port, want := range map[uint16]string{
				proxytest.PortRemote: "remote saw second", proxytest.PortLocal: "pod1 saw client",
			} {
				if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(vip, port), want); got != want {
					t.Errorf("mark %s: %s; want %s", tc.mark, got, want)
				}
			}
			out, err := exec.Command("nft", "list", "set", "ip", "other", "seen").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for name, mark := range map[string]uint32{"remote": tc.remote, "pod1": tc.local} {
				if want := fmt.Sprintf("%s . 0x%08x", proxytest.At(name, 0), mark); !strings.Contains(string(out),
					want) {
					t.Errorf("mark %s: no packet %s in %s", tc.mark, want, out)
				}
			}
		}
	})
}
