package l2

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A span is a range of numbers, both ends in it. For IPv4 they are addresses, for IPv6
// their last 32 bits, by which those of one subnet are told apart well enough.
type span struct{ first, last uint32 }

// maxSpans bounds the filters, which the kernel goes through for every packet of a
// protocol. An address that lets others through costs a little time; one that is held
// back would be lost.
const maxSpans = 32

// frameLength is how much of a packet is read. Neither protocol needs more.
const frameLength = 1514

// number is an address as filters know it.
func number(a netip.Addr) uint32 {
	b := a.As16()
	return binary.BigEndian.Uint32(b[12:])
}

// covering returns at most maxSpans spans, sorted, with all addresses in them and as few
// others as that allows: the gaps that stay closed are the widest.
func covering(addresses []netip.Addr) []span {
	var spans []span
	numbers := make([]uint32, len(addresses))
	for i, a := range addresses {
		numbers[i] = number(a)
	}
	slices.Sort(numbers)
	widest, ties := gapLimit(numbers)
	for i, n := range numbers {
		open := i == 0
		if !open {
			switch gap := n - numbers[i-1]; {
			case gap > 1 && gap == widest && ties > 0:
				open, ties = true, ties-1
			case gap > 1 && gap > widest:
				open = true
			}
		}
		if open {
			spans = append(spans, span{n, n})
		}
		spans[len(spans)-1].last = n
	}
	return spans
}

// cuts is how wide a gap must be in order to be wider than those that are covered, and how
// many of just that width are not.
func gapLimit(numbers []uint32) (widest uint32, ties int) {
	var gaps []uint32
	for i := range numbers {
		if i > 0 && numbers[i]-numbers[i-1] > 1 {
			gaps = append(gaps, numbers[i]-numbers[i-1])
		}
	}
	if len(gaps) < maxSpans {
		return 0, 0
	}
	slices.Sort(gaps)
	kept := gaps[len(gaps)-maxSpans+1:]
	for _, g := range kept {
		if g == kept[0] {
			ties++
		}
	}
	return kept[0], ties
}

// A program is a filter of the kernel's.
type program []bpf.Instruction

const (
	take = frameLength
	drop = 0
)

// received drops what this node sends itself, and what is for others: in promiscuous
// mode, and of VLANs that have no interface here, whose packets the kernel hands to the
// parent's sockets so marked. It also hands these what is for a VLAN's or a macvlan's
// interface, which is another than index then (__netif_receive_skb_core: the sockets of
// the device that a packet came in by are asked last, when it belongs to the other).
func received(index int) program {
	return program{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: unix.PACKET_MULTICAST, SkipTrue: 2},
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(index), SkipFalse: 1},
		bpf.RetConstant{Val: drop},
	}
}

// within takes a packet that has a number of a span at the offset.
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

// Offsets in a frame of what filters read.
const (
	arpSender   = 14 + 14
	arpTarget   = 14 + 24
	ipv6Next    = 14 + 6
	icmpv6Type  = 14 + sizeofIPv6
	ndpTargetLo = 14 + sizeofIPv6 + 8 + 12
)

func filterARP(index int, spans []span) program {
	return slices.Concat(received(index), within(arpTarget, spans), within(arpSender, spans), program{bpf.RetConstant{Val: drop}})
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
