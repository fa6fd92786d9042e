package l2

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// benchSocket is a socket with n addresses of a family, and requests for them.
func benchSocket(b *testing.B, six bool, n int) (*packetSocket, [][]byte) {
	p := &packetSocket{
		key: socketKey{1, arpProtocol}, claims: claims{mac: mac(1), addresses: make(map[netip.Addr]*address)},
	}
	frames := make([][]byte, n)
	for i := range n {
		addr, sender := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), ip("10.9.0.1")
		if six {
			p.key.protocol = ndpProtocol
			addr, sender = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), ip("fd00::9:1")
		}
		p.claims.addresses[addr] = &address{phase: Held}
		var err error
		frames[i], err = p.key.protocol.marshal(packet{
			op: opRequest, from: mac(0x10), to: mac(1), sender: sender, target: addr,
		})
		must(b, err)
	}
	return p, frames
}

// The cost of a request without the kernel, from the received frame to the answer: parsing,
// deciding, the rate limit, and marshalling.
func BenchmarkReply(b *testing.B) {
	for _, six := range []bool{false, true} {
		p, frames := benchSocket(b, six, 1000)
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

// The cost of changing one address among many without the kernel: the sockets that answer.
func BenchmarkPlanSockets(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			interfaces := []Interface{{Name: "eth0", Index: 2,
				Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
			all := many(n)[:n]
			plans := make(socketPlans)
			plans.update(changes(nil, all, true), interfaces)
			lists := [2][]Address{all, all[1:]}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				before, after := lists[i%2], lists[(i+1)%2]
				plans.update(changes(before, after, false), interfaces)
				if got := len(plans[socketKey{2, arpProtocol}].addresses); got != len(after) {
					b.Fatal(got)
				}
			}
		})
	}
}

// many returns n addresses of each family in the subnets of lan.
func many(n int) (all []Address) {
	for i := range n {
		all = append(all, Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(1 + i>>8), byte(i)})})
	}
	for i := range n {
		all = append(all, Address{Addr: netip.AddrFrom16([16]byte{0: 0xfd, 13: 1, 14: byte(i >> 8), 15: byte(i)})})
	}
	return all
}

// The cost of a request with the kernel: the CPU time of both ends of a veth link,
// including the client. 1,000 addresses of each family are held.
func BenchmarkAnswer(b *testing.B) {
	nstest.Isolate(b)
	host, client := nstest.New(b, "node"), nstest.New(b, "client")
	nstest.Link(b, host, "eth0", client, "eth0")
	host.Addr("eth0", "10.0.0.1/16", "fd00::1/64")
	listener := listen(b, client, "eth0")
	n := start(b, host)
	all := many(1000)
	n.set(all...)
	for announced := 0; announced < 6*2000+6*1000; announced++ {
		<-listener.got // until there is silence
	}
	for _, family := range []struct {
		name, sender string
		addresses    []Address
	}{{"arp", "10.0.9.9", all[:1000]}, {"ndp", "fd00::9", all[1000:]}} {
		b.Run(family.name, func(b *testing.B) {
			began := used()
			for i := 0; b.Loop(); i++ {
				a := family.addresses[i%len(family.addresses)].Addr.String()
				listener.mac[5] = byte(i % 64) // below each sender's rate limit
				listener.ask(a, family.sender)
				listener.answer(a)
			}
			b.ReportMetric(float64(used()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// used is the CPU time of this process.
func used() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The cost of adding and removing one address beside others, with the kernel.
func BenchmarkSet(b *testing.B) {
	for _, count := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			nstest.Isolate(b)
			host, other := nstest.New(b, "node"), nstest.New(b, "other")
			nstest.Link(b, host, "eth0", other, "eth0")
			host.Addr("eth0", "10.0.0.1/16", "fd00::1/64")
			n := start(b, host)
			all := many(count)
			n.set(all...)
			states := []State{{Addresses: all[1:]}, {Addresses: all}}
			for i := 0; b.Loop(); i++ {
				_, err := n.Set(context.Background(), states[i%2])
				must(b, err)
			}
		})
	}
}

// The cost of a Set that replaces 10 of 10,000 addresses, beside one that changes all of them. The
// kernel takes part: for NDP it leaves and joins 10 groups among thousands.
func BenchmarkSetFewOfMany(b *testing.B) {
	const few, count = 10, 10_000
	all := many(count + few)
	for name, all := range map[string][]Address{"arp": all[:count+few], "ndp": all[count+few:]} {
		b.Run(name, func(b *testing.B) {
			nstest.Isolate(b)
			host, other := nstest.New(b, "node"), nstest.New(b, "other")
			nstest.Link(b, host, "eth0", other, "eth0")
			host.Addr("eth0", "10.0.0.1/16", "fd00::1/64")
			n := start(b, host)
			n.phases.sendRate.SetLimit(rate.Inf)
			for s := again1; s <= again5; s++ {
				n.phases.schedule.delays[s] = time.Hour // announcements are not measured
			}
			n.set(all...)
			n.awaitAnnounced()
			yielding := slices.Clone(all)
			for i := range yielding {
				yielding[i].Yield = true
			}
			for b.Loop() {
				some := n.cpuOfSets(b, all[few:], all[:count])
				whole := n.cpuOfSets(b, yielding, all)
				b.ReportMetric(some, "cpu-ns/few")
				b.ReportMetric(whole, "cpu-ns/all")
				b.ReportMetric(some/whole, "few/all")
			}
		})
	}
}

// awaitAnnounced waits until each address is announced once in each form.
func (n *node) awaitAnnounced() {
	until(n.t, func() string {
		n.phases.mu.Lock()
		defer n.phases.mu.Unlock()
		if left := len(n.phases.schedule.queues[announce]) + len(n.phases.schedule.queues[confirm]); left > 0 {
			return fmt.Sprintf("%d announcements are due", left)
		}
		return ""
	})
}

// cpuOfSets is the CPU time of one Set, on average over some that alternate between two lists.
func (n *node) cpuOfSets(b *testing.B, lists ...[]Address) float64 {
	const times = 50
	n.set(lists[1]...)
	n.awaitAnnounced()
	began := used()
	for i := range times {
		_, err := n.Set(context.Background(), State{Addresses: lists[i%2]})
		must(b, err)
	}
	return float64(used()-began) / times
}
