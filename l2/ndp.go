package l2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"golang.org/x/net/icmp"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
)

var ndpProtocol = &protocol{
	name:      "ndp",
	etherType: unix.ETH_P_IPV6,
	parse:     parseNDP,
	marshal:   marshalNDP,
	filter:    filterNDP,
}

// sizeofIPv6 is the length of an IPv6 header. Extension headers do not precede Neighbor
// Discovery messages: RFC 6980 forbids fragments, hosts send no others, and the filter
// drops them.
const sizeofIPv6 = 40

// solicitedNode is the multicast group of solicitations for addr (RFC 4291 §2.7.1).
func solicitedNode(addr netip.Addr) netip.Addr {
	b := addr.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// An ipv6Header has the addresses of an IPv6 header.
type ipv6Header struct {
	source, destination netip.Addr
}

// parseNDP makes the checks of RFC 4861 §7.1.1 and §7.1.2: a packet socket delivers
// frames that the kernel has not validated.
func parseNDP(frame []byte) (packet, error) {
	var f ethernet.Frame
	if err := f.UnmarshalBinary(frame); err != nil {
		return packet{}, err
	}
	if f.EtherType != ethernet.EtherTypeIPv6 {
		return packet{}, fmt.Errorf("EtherType %#04x", uint16(f.EtherType))
	}
	ip, message, err := parseIPv6(f.Payload)
	if err != nil {
		return packet{}, err
	}
	m, err := ndp.ParseMessage(message)
	if err != nil {
		return packet{}, err
	}
	p := packet{to: MAC(f.Destination)}
	switch m := m.(type) {
	case *ndp.NeighborSolicitation:
		err = p.solicitation(m, ip, MAC(f.Source))
	case *ndp.NeighborAdvertisement:
		err = p.advertisement(m, ip, MAC(f.Source))
	default:
		err = fmt.Errorf("ICMPv6 type %d", message[0])
	}
	if err != nil {
		return packet{}, err
	}
	return p, p.check()
}

// parseIPv6 returns the ICMPv6 message of a packet, without Ethernet's padding.
func parseIPv6(b []byte) (ipv6Header, []byte, error) {
	if len(b) < sizeofIPv6 || b[0]>>4 != 6 {
		return ipv6Header{}, nil, errors.New("IPv6 header missing")
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	switch {
	case b[6] != unix.IPPROTO_ICMPV6:
		return ipv6Header{}, nil, fmt.Errorf("protocol %d", b[6])
	case b[7] != ndp.HopLimit:
		return ipv6Header{}, nil, fmt.Errorf("hop limit %d, want 255: sent from another link", b[7])
	case length > len(b)-sizeofIPv6:
		return ipv6Header{}, nil, errors.New("cut off")
	case length < 4:
		return ipv6Header{}, nil, errors.New("ICMPv6 header missing")
	}
	ip := ipv6Header{netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))}
	message := b[sizeofIPv6 : sizeofIPv6+length]
	switch {
	case message[1] != 0:
		return ip, nil, fmt.Errorf("ICMPv6 code %d", message[1])
	case checksum(ip, message) != 0:
		return ip, nil, errors.New("wrong checksum")
	}
	return ip, message, nil
}

// checksum is 0 if the message's checksum is right (RFC 4443 §2.3).
func checksum(ip ipv6Header, message []byte) uint16 {
	pseudo := icmp.IPv6PseudoHeader(ip.source.AsSlice(), ip.destination.AsSlice())
	binary.BigEndian.PutUint32(pseudo[32:], uint32(len(message)))
	sum := uint32(0)
	for _, b := range [][]byte{pseudo, message} {
		for i, c := range b {
			// All parts but the last have an even length.
			sum += uint32(c) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func (p *packet) solicitation(m *ndp.NeighborSolicitation, ip ipv6Header, from MAC) error {
	mac, found := linkLayer(m.Options, ndp.Source)
	if ip.source.IsUnspecified() {
		if found {
			return errors.New("a probe with a source link-layer address")
		}
		if ip.destination != solicitedNode(m.TargetAddress) {
			return errors.New("a probe to " + ip.destination.String())
		}
	}
	if !found {
		mac = from // unicast solicitations may leave the option out
	}
	p.op, p.from, p.sender, p.target = opRequest, mac, ip.source, m.TargetAddress
	return nil
}

func (p *packet) advertisement(m *ndp.NeighborAdvertisement, ip ipv6Header, from MAC) error {
	if ip.destination.IsMulticast() && m.Solicited {
		return errors.New("multicast advertisement with the solicited flag")
	}
	mac, found := linkLayer(m.Options, ndp.Target)
	if !found {
		mac = from
	}
	p.op, p.from, p.sender, p.target, p.tentative = opReply, mac, m.TargetAddress, ip.destination, !m.Override
	return nil
}

func linkLayer(options []ndp.Option, d ndp.Direction) (MAC, bool) {
	for _, o := range options {
		if l, ok := o.(*ndp.LinkLayerAddress); ok && l.Direction == d {
			return hwaddr.Of(l.Addr)
		}
	}
	return MAC{}, false
}

// marshalNDP sends advertisements from the address itself, as the kernel does for its own.
func marshalNDP(p packet) ([]byte, error) {
	ip := ipv6Header{p.sender, p.target}
	var m ndp.Message
	switch {
	case p.op == opReply:
		m = &ndp.NeighborAdvertisement{
			// Not a router, and it overrides cached entries (RFC 4861 §7.2.5).
			Solicited: !p.target.IsMulticast(), Override: !p.tentative,
			TargetAddress: p.sender,
			Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: p.from[:]}},
		}
	default:
		ip.destination = solicitedNode(p.target)
		ns := &ndp.NeighborSolicitation{TargetAddress: p.target}
		if !p.sender.IsUnspecified() {
			ns.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: p.from[:]}}
		}
		m = ns
	}
	message, err := ndp.MarshalMessageChecksum(m, ip.source, ip.destination)
	if err != nil {
		return nil, err
	}
	return (&ethernet.Frame{Destination: p.to[:], Source: p.from[:], EtherType: ethernet.EtherTypeIPv6,
		Payload: ip.marshal(message)}).MarshalBinary()
}

// marshal puts an IPv6 header before a message.
func (ip ipv6Header) marshal(message []byte) []byte {
	b := make([]byte, sizeofIPv6, sizeofIPv6+len(message))
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], uint16(len(message)))
	b[6], b[7] = unix.IPPROTO_ICMPV6, ndp.HopLimit
	copy(b[8:], ip.source.AsSlice())
	copy(b[24:], ip.destination.AsSlice())
	return append(b, message...)
}
