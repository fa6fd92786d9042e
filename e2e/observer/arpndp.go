package observer

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"

	cbpf "golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The requester is not a host, so that no kernel learns from the answers and a request does
// not change any neighbour table. The bridge knows the port that leads to it.
var (
	requesterMAC   = net.HardwareAddr{0x02, 0xff, 0, 0, 0, 1}
	requesterAddr  = netip.MustParseAddr("198.51.100.51")
	requesterAddr6 = netip.MustParseAddr("2001:db8:51::51")
)

// A claimFamily is the protocol that resolves addresses of one family: ARP or Neighbor
// Discovery.
type claimFamily struct {
	name     string
	is4      bool
	protocol uint16             // EtherType
	filter   []cbpf.Instruction // accepts claims; nil accepts all frames
	request  func(vip netip.Addr) []byte
	// read returns the address that a frame claims and the claiming hardware address. ok is
	// false if the frame is no claim.
	read func(frame []byte) (vip netip.Addr, mac net.HardwareAddr, ok bool)
}

var claimFamilies = []claimFamily{
	{"ARP", true, unix.ETH_P_ARP, nil, arpRequest, readARP},
	{"Neighbor Discovery", false, unix.ETH_P_IPV6, advertisements, solicitation, readAdvertisement},
}

// open opens a socket for all packets of an interface in the calling thread's namespace,
// those for other hosts included.
func (f claimFamily) open(iface string) (int, error) {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if f.filter != nil {
		err = attachFilter(fd, f.filter)
	}
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, f.protocol))
	return fd, errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: i.Index}))
}

// attachFilter attaches a BPF program that selects the frames a socket receives.
func attachFilter(fd int, program []cbpf.Instruction) error {
	raw, err := cbpf.Assemble(program)
	if err != nil {
		return err
	}
	list := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		list[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]})
}

// arpRequest returns a broadcast ARP request for an IPv4 address (RFC 826).
func arpRequest(vip netip.Addr) []byte {
	frame := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, requesterMAC,
		[]byte{0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1})
	frame = slices.Concat(frame, requesterMAC, requesterAddr.AsSlice(), make([]byte, 6), vip.AsSlice())
	return append(frame, make([]byte, 60-len(frame))...) // the minimum size of an Ethernet frame
}

func readARP(frame []byte) (vip netip.Addr, mac net.HardwareAddr, ok bool) {
	if len(frame) < 42 {
		return vip, mac, false
	}
	return netip.AddrFrom4([4]byte(frame[28:32])), slices.Clone(frame[22:28]), true
}

// Neighbor Discovery's message types, and offsets in a frame without VLAN tag and extension
// headers (RFC 4861 §4.3, §4.4).
const (
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	nextHeaderAt          = 14 + 6
	messageAt             = 14 + 40
	targetAt              = messageAt + 8
	optionAt              = targetAt + 16
)

// advertisements accepts neighbour advertisements and drops all other frames.
var advertisements = []cbpf.Instruction{
	cbpf.LoadAbsolute{Off: nextHeaderAt, Size: 1},
	cbpf.JumpIf{Cond: cbpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 3},
	cbpf.LoadAbsolute{Off: messageAt, Size: 1},
	cbpf.JumpIf{Cond: cbpf.JumpNotEqual, Val: neighborAdvertisement, SkipTrue: 1},
	cbpf.RetConstant{Val: 1 << 16},
	cbpf.RetConstant{Val: 0},
}

// solicitation returns a neighbour solicitation for an IPv6 address, sent to its
// solicited-node multicast group (RFC 4861 §4.3).
func solicitation(vip netip.Addr) []byte {
	target, requester := vip.As16(), requesterAddr6.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]}
	message := slices.Concat([]byte{neighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, target[:], []byte{1, 1}, requesterMAC)
	binary.BigEndian.PutUint16(message[2:], checksum6(requester, group, message))
	header := slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(message)), unix.IPPROTO_ICMPV6, 255}, requester[:],
		group[:])
	return slices.Concat([]byte{0x33, 0x33}, group[12:], requesterMAC, []byte{0x86, 0xdd}, header, message)
}

// checksum6 returns the ICMPv6 checksum of a message whose checksum field is zero (RFC 4443
// §2.3).
func checksum6(from, to [16]byte, message []byte) uint16 {
	sum := uint32(len(message) + unix.IPPROTO_ICMPV6)
	for _, part := range [][]byte{from[:], to[:], message} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// readAdvertisement accepts only messages with a hardware address, because hosts learn from
// these.
func readAdvertisement(frame []byte) (vip netip.Addr, mac net.HardwareAddr, ok bool) {
	const targetLinkLayerAddress = 2
	if len(frame) < optionAt+8 || frame[nextHeaderAt] != unix.IPPROTO_ICMPV6 ||
		frame[messageAt] != neighborAdvertisement || frame[optionAt] != targetLinkLayerAddress {
		return vip, mac, false
	}
	return netip.AddrFrom16([16]byte(frame[targetAt:optionAt])), slices.Clone(frame[optionAt+2 : optionAt+8]), true
}
