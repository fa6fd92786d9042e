package l2

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A span is a closed range of numbers: IPv4 addresses, or the last 32 bits of IPv6
// addresses, which differ within a subnet nearly always.
type span struct{ first, last uint32 }

// maxSpans bounds the filter, which the kernel runs for every packet of a protocol. A
// filter that passes too many addresses costs a little time; one that passes too few loses
// packets.
const maxSpans = 32

// frameLength is how much of a packet is read. Both protocols need less.
const frameLength = 1514

// number is an address as filters compare it.
func number(a netip.Addr) uint32 {
	b := a.As16()
	return binary.BigEndian.Uint32(b[12:])
}

// spansOf returns at most maxSpans spans of IPv4 networks, which are sorted.
func spansOf(pools []netip.Prefix) (spans []span) {
	for _, p := range pools {
		first := number(p.Masked().Addr())
		last := first | (1<<(32-p.Bits()) - 1)
		if n := len(spans); n > 0 && spans[n-1].last+1 == first {
			spans[n-1].last = last
		} else if n < maxSpans {
			spans = append(spans, span{first, last})
		}
	}
	return spans
}

// covering returns at most maxSpans spans, sorted, that contain all addresses and as few
// others as possible: only the widest gaps separate spans.
func covering(addresses []netip.Addr) (spans []span) {
	numbers := make([]uint32, len(addresses))
	for i, a := range addresses {
		numbers[i] = number(a)
	}
	slices.Sort(numbers)
	var begins []int // of spans, as indexes: the numbers after gaps
	for i, n := range numbers {
		if i == 0 || n-numbers[i-1] > 1 {
			begins = append(begins, i)
		}
	}
	if len(begins) > maxSpans {
		gap := func(i int) uint32 { return numbers[i] - numbers[i-1] }
		slices.SortFunc(begins[1:], func(i, j int) int { return cmp.Compare(gap(j), gap(i)) })
		begins = begins[:maxSpans]
		slices.Sort(begins)
	}
	for i, from := range begins {
		to := len(numbers)
		if i+1 < len(begins) {
			to = begins[i+1]
		}
		spans = append(spans, span{numbers[from], numbers[to-1]})
	}
	return spans
}

// A program is a socket filter.
type program []bpf.Instruction

const (
	take = frameLength
	drop = 0
)

// received drops packets that this node sends, and packets for other hosts: those of
// promiscuous mode, and those of VLANs without an interface here. The kernel also hands
// packets for a VLAN or macvlan interface to the parent's sockets, with the other
// interface's index (__netif_receive_skb_core); they are dropped too.
func received(index int) program {
	return program{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: unix.PACKET_MULTICAST, SkipTrue: 2},
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(index), SkipFalse: 1},
		bpf.RetConstant{Val: drop},
	}
}

// within accepts a packet whose number at the offset is in a span.
func within(offset uint32, spans []span) program {
	p := program{bpf.LoadAbsolute{Off: offset, Size: 4}}
	for _, s := range spans {
		p = append(p,
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: s.first, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: s.last, SkipTrue: 1},
			bpf.RetConstant{Val: take},
		)
	}
	return p
}

// Offsets in a frame that filters read.
const (
	arpSender   = 14 + 14
	arpTarget   = 14 + 24
	ipv6Next    = 14 + 6
	icmpv6Type  = 14 + sizeofIPv6
	ndpTargetLo = 14 + sizeofIPv6 + 8 + 12
)

func filterARP(index int, spans []span) program {
	return slices.Concat(received(index), within(arpTarget, spans), within(arpSender, spans),
		program{bpf.RetConstant{Val: drop}})
}

func filterNDP(index int, spans []span) program {
	return slices.Concat(received(index), program{
		bpf.LoadAbsolute{Off: ipv6Next, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 3},
		bpf.LoadAbsolute{Off: icmpv6Type, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: neighborSolicitation, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: neighborAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: drop},
	}, within(ndpTargetLo, spans), program{bpf.RetConstant{Val: drop}})
}

// Types of ICMPv6 (RFC 4861 §4.3, §4.4).
const (
	neighborSolicitation  = 135
	neighborAdvertisement = 136
)
