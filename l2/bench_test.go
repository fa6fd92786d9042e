package l2

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// crowd is a port with n addresses of a family, and requests for them.
func crowd(b *testing.B, six bool, n int) (*port, [][]byte) {
	p := &port{key: portKey{1, arpProtocol}, claims: claims{mac: mac(1), addresses: make(map[netip.Addr]*address)}}
	frames := make([][]byte, n)
	for i := range n {
		addr, sender := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), ip("10.9.0.1")
		if six {
			p.key.protocol = ndpProtocol
			addr, sender = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), ip("fd00::9:1")
		}
		p.claims.addresses[addr] = &address{phase: Held}
		var err error
		frames[i], err = p.key.protocol.marshal(packet{op: ask, from: mac(0x10), to: mac(1), sender: sender, target: addr})
		must(b, err)
	}
	return p, frames
}

// What a request costs, from the frame that came in to the one that goes out, without the
// kernel: parsing, deciding, the sender's allowance, and making the answer.
func BenchmarkReply(b *testing.B) {
	for _, six := range []bool{false, true} {
		p, frames := crowd(b, six, 1000)
		b.Run(p.key.protocol.name, func(b *testing.B) {
			b.ReportAllocs()
			now := time.Now()
			allowed := rate.NewLimiter(rate.Inf, 1)
			for i := 0; b.Loop(); i++ {
				in, err := p.key.protocol.parse(frames[i%len(frames)])
				must(b, err)
				out, v := reply(in, p.claims)
				if v != answered || !allowed.AllowN(now, 1) {
					b.Fatal(v)
				}
				_, err = p.key.protocol.marshal(out)
				must(b, err)
			}
		})
	}
}

// What a change of one address among many costs, but for what the kernel does: who answers
// where, and the filter.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			iface := Interface{Name: "eth0", Index: 2, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
			var want []Address
			for i := range n {
				want = append(want, Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})})
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, berth := range plan(want, []Interface{iface}) {
					if len(berth.addresses) != n {
						b.Fatal(len(berth.addresses))
					}
				}
			}
		})
	}
}
