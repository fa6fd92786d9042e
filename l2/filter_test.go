package l2

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
)

func TestCovering(t *testing.T) {
	addrs := func(from, count, step int) (all []netip.Addr) {
		for i := range count {
			n := from + i*step
			all = append(all, netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}))
		}
		return all
	}
	for _, tt := range []struct {
		name  string
		addrs []netip.Addr
		want  string
	}{
		{"none", nil, "[]"},
		{"one", addrs(5, 1, 1), "[{a000005 a000005}]"},
		{"neighbours", addrs(5, 1000, 1), "[{a000005 a0003ec}]"},
		{"two", slices.Concat(addrs(9, 1, 1), addrs(5, 1, 1), addrs(5, 1, 1)), "[{a000005 a000005} {a000009 a000009}]"},
		{"IPv6 by its end", []netip.Addr{ip("2001:db8::1:2"), ip("2001:db9::1:1")}, "[{10001 10002}]"},
	} {
		if got := fmt.Sprintf("%x", covering(tt.addrs)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := covering(addrs(0, 1000, 7)); len(got) > maxSpans {
		t.Errorf("%d spans for 1000 equal gaps", len(got))
	}
	// A wide gap stays, however many narrow ones there are.
	far := slices.Concat(addrs(0, 500, 3), addrs(1<<20, 500, 3))
	if got := covering(far); len(got) > maxSpans ||
		slices.ContainsFunc(got, func(s span) bool { return s.last-s.first > 1<<19 }) {
		t.Errorf("spans %x", got)
	}
}

// Networks that touch are one span, and there are never too many.
func TestSpansOfPools(t *testing.T) {
	pool := func(list ...string) (all []netip.Prefix) {
		for _, s := range list {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	if got := fmt.Sprintf("%x", spansOf(pool("192.0.2.4/30", "192.0.2.8/29", "192.0.2.17/32", "192.0.2.18/32"))); got !=
		"[{c0000204 c000020f} {c0000211 c0000212}]" {
		t.Errorf("spans %s", got)
	}
	var many []netip.Prefix
	for i := range 100 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 24))
	}
	if got := spansOf(many); len(got) != maxSpans {
		t.Errorf("%d spans", len(got))
	}
}

// widestGaps is how much the widest gaps between addresses leave out, that may separate spans.
func widestGaps(addrs []netip.Addr) (sum uint32) {
	var numbers, gaps []uint32
	for _, a := range addrs {
		numbers = append(numbers, number(a))
	}
	slices.Sort(numbers)
	for i := 1; i < len(numbers); i++ {
		if gap := numbers[i] - numbers[i-1]; gap > 1 {
			gaps = append(gaps, gap)
		}
	}
	slices.Sort(gaps)
	for _, gap := range gaps[max(0, len(gaps)-maxSpans+1):] {
		sum += gap
	}
	return sum
}

// The spans cover all addresses and few others, and are sorted, for any addresses.
func TestCoveringRandom(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var addrs []netip.Addr
		for range r.IntN(200) {
			addrs = append(addrs, netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(256)), byte(r.IntN(256))}))
		}
		spans := covering(addrs)
		if len(spans) > maxSpans {
			t.Fatalf("seed %d: %d spans", seed, len(spans))
		}
		var between uint32
		for i, s := range spans {
			if s.last < s.first || i > 0 && s.first <= spans[i-1].last {
				t.Fatalf("seed %d: spans %x", seed, spans)
			}
			if i > 0 {
				between += s.first - spans[i-1].last
			}
		}
		if want := widestGaps(addrs); between != want {
			t.Fatalf("seed %d: %d numbers are between the spans %x, want %d", seed, between, spans, want)
		}
		for _, a := range addrs {
			if !slices.ContainsFunc(spans, func(s span) bool { return s.first <= number(a) && number(a) <= s.last }) {
				t.Fatalf("seed %d: %s is not covered by %x", seed, a, spans)
			}
		}
	}
}

// Filters of many addresses are programs that the kernel accepts, and they pass the right
// packets. The VM has no ancillary data, so the instructions of received are left out.
func TestFilterPrograms(t *testing.T) {
	var four, six []netip.Addr
	for i := range 1000 {
		four = append(four, netip.AddrFrom4([4]byte{10, 0, byte(i / 83), byte(3 * i)}))
		six = append(six, netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 14: byte(i / 83), 15: byte(3 * i)}))
	}
	for _, proto := range []*protocol{arpProtocol, ndpProtocol} {
		ours, other := four, ip("10.9.0.1")
		if proto == ndpProtocol {
			ours, other = six, ip("2001::900:1")
		}
		prog := proto.filter(1, covering(ours))
		if raw, err := bpf.Assemble(prog); err != nil || len(raw) > 4096 {
			t.Fatalf("%s: %d instructions: %v", proto.name, len(raw), err)
		}
		vm, err := bpf.NewVM(prog[len(received(1)):])
		if err != nil {
			t.Fatal(err)
		}
		passes := func(p packet) bool {
			t.Helper()
			frame, err := proto.marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			n, err := vm.Run(frame)
			if err != nil {
				t.Fatal(err)
			}
			return n > 0
		}
		client := other.Next()
		for _, a := range ours {
			for _, p := range []packet{
				{op: opRequest, from: mac(0x10), to: broadcast, sender: client, target: a},
				probe(a, mac(0x10)), announcement(a, mac(0x10)),
				{op: opReply, from: mac(0x10), to: mac(1), sender: a, target: client},
			} {
				if !passes(p) {
					t.Fatalf("%s: %+v is dropped", proto.name, p)
				}
			}
		}
		for _, p := range []packet{
			{op: opRequest, from: mac(0x10), to: broadcast, sender: client, target: other},
			probe(other, mac(0x10)), announcement(other, mac(0x10)),
			{op: opReply, from: mac(0x10), to: mac(1), sender: other, target: client},
		} {
			if passes(p) {
				t.Errorf("%s: %+v passes", proto.name, p)
			}
		}
	}
	// IPv6 traffic of all kinds reaches an NDP socket.
	vm, err := bpf.NewVM(filterNDP(1, []span{{0, 1<<32 - 1}})[len(received(1)):])
	if err != nil {
		t.Fatal(err)
	}
	frame, err := marshalNDP(probe(ip("2001:db8::1"), mac(1)))
	if err != nil {
		t.Fatal(err)
	}
	for at, value := range map[int]byte{ipv6Next: 6, icmpv6Type: 128} {
		b := slices.Clone(frame)
		b[at] = value
		if n, err := vm.Run(b); err != nil || n != 0 {
			t.Errorf("byte %d is %d: passes %d (%v)", at, value, n, err)
		}
	}
}
