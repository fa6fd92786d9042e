package l2

import (
	"errors"
	"net/netip"
)

// An op is the operation of a packet.
type op uint8

const (
	opRequest op = iota // an ARP request, a neighbour solicitation
	opReply             // an ARP reply, a neighbour advertisement
)

// A packet has the relevant fields of an ARP or Neighbor Discovery frame. Each says that
// sender is at from; a request asks for the hardware address of target.
type packet struct {
	op   op
	from MAC // sender's hardware address, by the message
	to   MAC // destination of the frame
	// sender is the address whose hardware address is announced. It is unspecified in a
	// probe. In a neighbour advertisement it is the advertised address, whatever the
	// packet's source.
	sender netip.Addr
	// target is the address asked for; in a reply, its destination.
	target netip.Addr
	// about is ARP's target hardware address: zero in requests, and significant in
	// unsolicited replies.
	about MAC
	// tentative says that the sender still probes for the address: a neighbour advertisement
	// does not override what hosts know (RFC 4429 §2.2). ARP cannot say it.
	tentative bool
}

// A protocol is ARP or Neighbor Discovery.
type protocol struct {
	name      string
	etherType int
	// parse reads a whole frame. The error says what is malformed.
	parse func(frame []byte) (packet, error)
	// marshal returns a whole frame.
	marshal func(packet) ([]byte, error)
	// filter passes packets that arrive by the interface with the index and concern
	// addresses in spans; see covering.
	filter func(index int, spans []span) program
}

// protocolOf is the protocol of an address's family.
func protocolOf(a netip.Addr) *protocol {
	if a.Is4() {
		return arpProtocol
	}
	return ndpProtocol
}

var (
	broadcast   = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes    = netip.MustParseAddr("ff02::1")
	unspecified = map[bool]netip.Addr{true: netip.IPv4Unspecified(), false: netip.IPv6Unspecified()} // by Is4
)

// groupMAC is the destination of packets to an IPv6 group (RFC 2464 §7).
func groupMAC(group netip.Addr) MAC {
	b := group.As16()
	return MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// replyTo answers p: its target is at mac.
func replyTo(p packet, mac MAC) packet {
	a := packet{op: opReply, from: mac, to: p.from, sender: p.target, target: p.sender, about: p.from}
	if a.target.Is6() && a.target.IsUnspecified() {
		// A prober has no address yet, so all nodes receive the reply (RFC 4861 §7.2.4).
		a.to, a.target = groupMAC(allNodes), allNodes
	}
	return a
}

// tentativeReply answers p for an address that is still probed.
func tentativeReply(p packet, mac MAC) packet {
	a := replyTo(p, mac)
	a.tentative = a.sender.Is6()
	return a
}

// tentativeAnnouncement is for hosts that wait for an answer about an IPv6 address. Others
// ignore it if they know another owner (RFC 4861 §7.2.5).
func tentativeAnnouncement(addr netip.Addr, mac MAC) packet {
	a := announcement(addr, mac)
	a.tentative = true
	return a
}

// announcement says to all hosts that addr is at mac. For ARP it is a request (RFC 5227
// §2.3).
func announcement(addr netip.Addr, mac MAC) packet {
	if addr.Is6() {
		return packet{op: opReply, from: mac, to: groupMAC(allNodes), sender: addr, target: allNodes}
	}
	return packet{op: opRequest, from: mac, to: broadcast, sender: addr, target: addr}
}

// confirmation is the other form of an ARP announcement, a reply, for hosts that process
// only this form (RFC 5944 §4.6). Linux treats it as gratuitous, and not as a late answer,
// only if its target hardware address is the sender's (arp_is_garp).
func confirmation(addr netip.Addr, mac MAC) packet {
	return packet{op: opReply, from: mac, to: broadcast, sender: addr, target: addr, about: mac}
}

// check rejects packets that are invalid in both protocols.
func (p packet) check() error {
	switch {
	case !p.from.Unicast():
		return errors.New("sender hardware address is not unicast")
	case p.sender.IsMulticast(), p.sender.IsLoopback(), p.sender == limitedBroadcast:
		return errors.New("sender address is not unicast")
	case p.op == opRequest && (p.target.IsMulticast() || p.target.IsUnspecified()):
		return errors.New("target address is not unicast")
	case p.op == opReply && p.sender.IsUnspecified():
		return errors.New("sender address is unspecified in a reply")
	}
	return nil
}
