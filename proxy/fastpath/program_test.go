package fastpath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A packet and its reply are translated: addresses, ports, checksums and TTL.
func TestTranslation(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			client, vip, pod := port("client", family, 40000), port("vip", family, 80), port("pod1", family, 8080)
			for _, there := range []packet{
				{protocol: TCP, flags: syn, ttl: 9},
				{protocol: UDP, payload: []byte("hello")},
				{protocol: UDP, payload: []byte("odd length"), noSum: family == 0},
			} {
				there.from, there.to = client, vip
				verdict, out := l.arrive(p, there.ip())
				if verdict != redirect {
					t.Fatalf("%v: verdict %d", there, verdict)
				}
				want := there
				want.to, want.ttl = pod, max(there.ttl, 1)-1
				if there.ttl == 0 {
					want.ttl = 63
				}
				if got := read(t, out); !alikePackets(got, want) {
					t.Errorf("%v became %v; want %v", there, got, want)
				}
				back := packet{
					from: pod, to: client, protocol: there.protocol, flags: syn | ack, ttl: 2,
					payload: []byte("you, too"), noSum: there.noSum,
				}
				if back.protocol == UDP {
					back.flags = 0
				}
				verdict, out = l.comeBack(p, "cali1", back.ip())
				want = back
				want.from, want.ttl = vip, 1
				if got := read(t, out); verdict != redirect || !alikePackets(got, want) {
					t.Errorf("%v: verdict %d, became %v; want %v", back, verdict, got, want)
				}
			}
		}
	})
}

func alikePackets(a, b packet) bool {
	return a.from == b.from && a.to == b.to && a.protocol == b.protocol && a.flags == b.flags && a.ttl == b.ttl &&
		a.noSum == b.noSum && bytes.Equal(a.payload, b.payload)
}

// Packets that the program does not take pass it unchanged.
func TestOtherPacketsUnchanged(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		s := state("pod1")
		s.Clients = []netip.Prefix{netip.PrefixFrom(at("client2", 0), 32), netip.PrefixFrom(at("client2", 1), 128)}
		s.VIPs[0].Frontends[0].Take = false // vip, IPv4, TCP
		l.set(p, s)
		vip, vip2 := port("vip", 0, 80), port("vip2", 0, 80)
		udp := func(change func(*packet)) packet {
			p := packet{from: port("client", 0, 40000), to: vip, protocol: UDP}
			change(&p)
			return p
		}
		frames := map[string][]byte{
			"a frontend that is not taken": udp(func(p *packet) { p.protocol, p.flags = TCP, syn }).ip(),
			"the middle of a connection": udp(func(p *packet) {
				p.protocol, p.flags, p.to = TCP, ack, vip2
			}).ip(),
			"an answer to nothing": udp(func(p *packet) {
				p.protocol, p.flags, p.to = TCP, syn|ack, vip2
			}).ip(),
			"another port":          udp(func(p *packet) { p.to = port("vip", 0, 81) }).ip(),
			"another address":       udp(func(p *packet) { p.to = port("node", 0, 80) }).ip(),
			"a client of this node": udp(func(p *packet) { p.from = port("client2", 0, 1) }).ip(),
			"a client of this node, IPv6": udp(func(p *packet) {
				p.from, p.to = port("client2", 1, 1), port("vip", 1, 80)
			}).ip(),
			"the node's address as the source": udp(func(p *packet) { p.from = port("node", 0, 1) }).ip(),
			"a pod's address as the source":    udp(func(p *packet) { p.from = port("pod2", 0, 1) }).ip(),
			"the unspecified address as source": udp(func(p *packet) {
				p.from = netip.MustParseAddrPort("0.0.0.0:5")
			}).ip(),
			"the unspecified, IPv6": udp(func(p *packet) {
				p.from, p.to = netip.MustParseAddrPort("[::]:5"), port("vip", 1, 80)
			}).ip(),
			"a group as the source": udp(func(p *packet) {
				p.from = netip.MustParseAddrPort("224.0.0.1:5")
			}).ip(),
			"no route back": udp(func(p *packet) {
				p.from = netip.MustParseAddrPort("203.0.113.9:5")
			}).ip(),
			"its last hop": udp(func(p *packet) { p.ttl = 1 }).ip(),
			"ping": network(at("client", 0), at("vip", 0), 1, 64,
				[]byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}),
			"a neighbour's question": network(at("client", 1), netip.MustParseAddr("ff02::1:ff00:1"), 58,
				255, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, at("vip", 1).AsSlice()...)),
			"SCTP": network(at("client", 0), at("vip", 0), 132, 64, make([]byte, 20)),
		}
		options := udp(func(*packet) {}).ip()
		frames["IP options"] = slices.Concat([]byte{0x46}, options[1:20], []byte{1, 1, 1, 1}, options[20:])
		later := slices.Clone(options)
		later[6], later[7] = 0, 100
		frames["a fragment without the first"] = later
		short := slices.Clone(options)
		short[3] = 200
		frames["less than it says"] = short
		hop := packet{from: port("client", 1, 1), to: port("vip", 1, 80), protocol: UDP}
		frames["a header between, IPv6"] = network(hop.from.Addr(), hop.to.Addr(), 60, 64,
			append([]byte{UDP, 0, 0, 0, 0, 0, 0, 0}, hop.layer4()...))
		for name, ip := range frames {
			if verdict, out := l.arrive(p, ip); verdict != next || !bytes.Equal(out[14:], ip) {
				t.Errorf("%s: verdict %d, changed %t", name, verdict, !bytes.Equal(out[14:], ip))
			}
		}
		taken := udp(func(*packet) {}).ip()
		if verdict, _ := l.pass(p.kernel.Outward, "eth0", in(l.mac("cali1"), taken)); verdict != next {
			t.Errorf("for another MAC: verdict %d", verdict)
		}
		if verdict, _ := l.pass(p.kernel.Outward, "cali2", in(l.mac("cali2"), taken)); verdict != next {
			t.Errorf("on an interface that is not outward: verdict %d", verdict)
		}
		if f := l.flows(p); len(f) != 0 {
			t.Errorf("flows %v", f)
		}
		// With the same setup, a valid packet is taken.
		if verdict, _ := l.arrive(p, taken); verdict != redirect {
			t.Errorf("a datagram: verdict %d", verdict)
		}
	})
}

// ICMP errors about translated packets are translated, in both directions.
func TestICMPErrors(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			client, vip, pod := port("client", family, 40000), port("vip", family, 80), port("pod1", family, 8080)
			for _, protocol := range []uint8{TCP, UDP} {
				there := packet{from: client, to: vip, protocol: protocol, flags: syn, payload: make([]byte, 40)}
				if verdict, _ := l.arrive(p, there.ip()); verdict != redirect {
					t.Fatalf("verdict %d", verdict)
				}
				for _, tooBig := range []bool{false, true} {
					about := packet{from: vip, to: client, protocol: protocol, payload: make([]byte, 40)}
					verdict, out := l.arrive(p, icmp(at("client2", family), vip.Addr(), about.ip(), tooBig))
					from, to, got := readError(t, out)
					if verdict != redirect || from != at("client2", family) || to != pod.Addr() || got.from != pod ||
						got.to != client {
						t.Errorf("from a router: verdict %d, %s tells %s of %s to %s", verdict, from, to, got.from,
							got.to)
					}
					about = packet{from: client, to: pod, protocol: protocol, payload: make([]byte, 40)}
					verdict, out = l.comeBack(p, "cali1", icmp(pod.Addr(), client.Addr(), about.ip(), tooBig))
					from, to, got = readError(t, out)
					if verdict != redirect || from != vip.Addr() || to != client.Addr() || got.from != client ||
						got.to != vip {
						t.Errorf("from a pod: verdict %d, %s tells %s of %s to %s", verdict, from, to, got.from, got.to)
					}
				}
				// An error about an unknown flow.
				about := packet{
					from: vip, to: port("client", family, 40001), protocol: protocol, payload: make([]byte, 40),
				}
				ip := icmp(at("client2", family), vip.Addr(), about.ip(), false)
				if verdict, out := l.arrive(p, ip); verdict != next || !bytes.Equal(out[14:], ip) {
					t.Errorf("about another flow: verdict %d", verdict)
				}
			}
		}
	})
}

// A packet that is too large for the link to a pod is answered by an ICMP error from the VIP,
// with correct checksums.
func TestPacketTooBig(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		if err := netlink.LinkSetMTU(l.link("cali1"), 1300); err != nil {
			t.Fatal(err)
		}
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			for _, protocol := range []uint8{TCP, UDP} {
				there := packet{
					from: port("client", family, 40000), to: port("vip", family, 80), protocol: protocol, flags: syn,
				}
				if verdict, _ := l.arrive(p, there.ip()); verdict != redirect {
					t.Fatalf("verdict %d", verdict)
				}
				there.flags, there.payload = ack, bytes.Repeat([]byte("payload "), 160)
				verdict, out := l.arrive(p, there.ip())
				from, to, about := readError(t, out)
				if verdict != redirect || from != there.to.Addr() || to != there.from.Addr() ||
					about.from != there.from || about.to != there.to {
					t.Errorf("verdict %d, %s tells %s of %s to %s", verdict, from, to, about.from, about.to)
				}
				at := 14 + 20 + 6
				if family == 1 {
					at = 14 + 40 + 6
				}
				if mtu := binary.BigEndian.Uint16(out[at:]); mtu != 1300 {
					t.Errorf("MTU %d; want 1300", mtu)
				}
				if family == 1 {
					continue
				}
				// Without DF, the stack fragments the packet.
				ip := there.ip()
				ip[6], ip[10], ip[11] = 0, 0, 0
				binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
				verdict, out = l.arrive(p, ip)
				if got := read(t, out); verdict != next || got.to != port("pod1", 0, 8080) || got.ttl != 64 {
					t.Errorf("verdict %d, %s", verdict, got.to)
				}
			}
		}
	})
}

// Backends get new flows by their weights.
func TestWeights(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		s := each(state("pod1", "pod2", "pod3"), func(f *Frontend) {
			for i, w := range []uint16{1, 3, 6} {
				f.Backends[i].Weight = w
			}
		})
		l.set(p, s)
		got := make(map[netip.Addr]int)
		const all = 5000
		for n := range uint16(all) {
			if verdict, _ := l.arrive(p, packet{from: port("client", 0, 1024+n), to: port("vip", 0, 80),
				protocol: UDP}.ip()); verdict != redirect {
				t.Fatalf("verdict %d", verdict)
			}
		}
		for _, f := range l.flows(p) {
			got[f.Backend.Addr()]++
		}
		// 210 is at least six standard deviations.
		for pod, want := range map[string]int{"pod1": all / 10, "pod2": all * 3 / 10, "pod3": all * 6 / 10} {
			if n := got[at(pod, 0)]; math.Abs(float64(n-want)) > 210 {
				t.Errorf("%s got %d flows of %d; want about %d", pod, n, all, want)
			}
		}
	})
}

// Random packets of other flows pass unchanged, and translated ones have correct checksums.
func TestMalformedPackets(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		r := rand.New(rand.NewPCG(1, 2))
		var seeds [][]byte
		for _, family := range families {
			client, vip, pod := port("client", family, 40000), port("vip", family, 80), port("pod1", family, 8080)
			for _, protocol := range []uint8{TCP, UDP} {
				there := packet{from: client, to: vip, protocol: protocol, flags: syn, payload: make([]byte, 30)}
				seeds = append(seeds, there.ip(), packet{from: pod, to: client, protocol: protocol, flags: ack}.ip(),
					icmp(at("client2", family), vip.Addr(), packet{from: vip, to: client, protocol: protocol}.ip(),
						true),
					icmp(pod.Addr(), client.Addr(), packet{from: client, to: pod, protocol: protocol}.ip(), true))
				l.arrive(p, there.ip())
			}
		}
		// A client may be any address with a route.
		ours := []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:1::/64")}
		for _, family := range families {
			for _, name := range []string{"vip", "vip2", "pod1"} {
				ours = append(ours, netip.PrefixFrom(at(name, family), at(name, family).BitLen()))
			}
		}
		taken := 0
		for range 20000 {
			ip := slices.Clone(seeds[r.IntN(len(seeds))])
			for range r.IntN(4) {
				ip[r.IntN(len(ip))] = byte(r.IntN(256))
			}
			if r.IntN(4) == 0 {
				ip = ip[:1+r.IntN(len(ip)-1)]
			}
			for iface, program := range map[string]*ebpf.Program{"eth0": p.kernel.Outward, "cali1": p.kernel.Inward} {
				if len(ip) < 20 || ip[0]>>4 == 6 && len(ip) < 40 {
					continue // the kernel rejects frames that are shorter than a header
				}
				frame := in(l.mac(iface), ip)
				verdict, out := l.pass(program, iface, frame)
				switch {
				case verdict == redirect:
					taken++
					if err := plausible(frame, ours); err != nil {
						t.Errorf("on %s the program took %x: %v", iface, frame, err)
					}
				case verdict == drop && plausible(frame, ours) == nil: // a first fragment that was overtaken
				case verdict != next:
					t.Errorf("on %s: verdict %d for %x", iface, verdict, frame)
				case !bytes.Equal(out, frame) && plausible(frame, ours) != nil:
					t.Errorf("on %s the program changed %x to %x", iface, frame, out)
				}
			}
		}
		if taken < 1000 {
			t.Errorf("only %d packets were taken: too few random packets are valid", taken)
		}
	})
}

// plausible returns an error if a frame cannot be a packet of one of these flows.
func plausible(frame []byte, ours []netip.Prefix) error {
	ip := frame[14:]
	switch {
	case frame[12] == 0x08 && len(ip) >= 20 && ip[0] == 0x45:
		to, _ := netip.AddrFromSlice(ip[16:20])
		if !sortedset.ContainsAddr(ours, to) {
			return fmt.Errorf("it is for %s", to)
		}
	case frame[12] == 0x86 && len(ip) >= 40 && ip[0]>>4 == 6:
		to, _ := netip.AddrFromSlice(ip[24:40])
		if !sortedset.ContainsAddr(ours, to) {
			return fmt.Errorf("it is for %s", to)
		}
	default:
		return fmt.Errorf("not an IP packet")
	}
	return nil
}

// A sender gets ten ICMP errors a second about a destination, and others get theirs.
func TestPacketTooBigLimit(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		if err := netlink.LinkSetMTU(l.link("cali1"), 1300); err != nil {
			t.Fatal(err)
		}
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			answers := func(from, to string, n int) (got int) {
				there := packet{from: port(from, family, 40000), to: port(to, family, 80), protocol: TCP, flags: syn}
				l.arrive(p, there.ip())
				there.flags, there.payload = ack, make([]byte, 1400)
				for range n {
					if verdict, _ := l.arrive(p, there.ip()); verdict == redirect {
						got++
					}
				}
				return got
			}
			// A second may begin between the first packet and the last one.
			if got := answers("client", "vip", 300); got < 10 || got > 20 {
				t.Errorf("IPv%d: %d errors for 300 packets; want 10", 4+2*family, got)
			}
			if got := answers("client2", "vip", 5) + answers("client", "vip2", 5); got != 10 {
				t.Errorf("IPv%d: %d errors for 10 packets of others", 4+2*family, got)
			}
		}
	})
}
