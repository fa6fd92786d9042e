package l2

import (
	"errors"
	"net/netip"
)

// An op is what a packet does.
type op uint8

const (
	opRequest  op = iota // an ARP request, a neighbour solicitation
	opReply           // an ARP reply, a neighbour advertisement
)

// A packet is what matters of a frame of ARP or Neighbor Discovery; both say the same
// things. Each says that sender is at from; one that asks wants to know who target is.
type packet struct {
	op   op
	from MAC // whose address sender is, as the message says it
	to   MAC // where the frame goes
	// sender is the one whose hardware address is told. It is unspecified in a probe,
	// which tells nothing. For an advertisement it is the address advertised, wherever
	// the packet comes from.
	sender netip.Addr
	// target is the address asked for, or, where something is told, to whom.
	target netip.Addr
	// about is ARP's target hardware address, which is to be zero in requests and has a
	// meaning in replies that nobody asked for.
	about MAC
}

// A protocol is ARP or Neighbor Discovery.
type protocol struct {
	name      string
	etherType int
	// parse reads a whole frame. An error says what is malformed in it.
	parse func(frame []byte) (packet, error)
	// marshal makes a whole frame.
	marshal func(packet) ([]byte, error)
	// filter lets through what came in by the interface of an index and is about addresses
	// in spans; see covering.
	filter func(index int, spans []span) program
}

// protocolOf is the one that answers for an address.
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

// groupMAC is where packets to an IPv6 group go (RFC 2464 §7).
func groupMAC(group netip.Addr) MAC {
	b := group.As16()
	return MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// answer tells the one that sent p that its target is at mac.
func replyTo(p packet, mac MAC) packet {
	a := packet{op: opReply, from: mac, to: p.from, sender: p.target, target: p.sender, about: p.from}
	if a.target.Is6() && a.target.IsUnspecified() {
		// Who probes has no address yet: everybody is told (RFC 4861 §7.2.4).
		a.to, a.target = groupMAC(allNodes), allNodes
	}
	return a
}

// announcement tells everybody that addr is at mac. For ARP it is a request, as RFC 5227
// §2.3 wants it.
func announcement(addr netip.Addr, mac MAC) packet {
	if addr.Is6() {
		return packet{op: opReply, from: mac, to: groupMAC(allNodes), sender: addr, target: allNodes}
	}
	return packet{op: opRequest, from: mac, to: broadcast, sender: addr, target: addr}
}

// confirmation is the other form of an ARP announcement, a reply, for those who take
// notice of that one only (RFC 5944 §4.6). Linux takes it for gratuitous, and so for
// more than an answer that came late, only if its target hardware address is the
// sender's (arp_is_garp).
func confirmation(addr netip.Addr, mac MAC) packet {
	return packet{op: opReply, from: mac, to: broadcast, sender: addr, target: addr, about: mac}
}

// probe asks who has addr, and tells nothing (RFC 5227 §2.1.1, RFC 4862 §5.4.2).
func probe(addr netip.Addr, mac MAC) packet {
	p := packet{op: opRequest, from: mac, to: broadcast, sender: unspecified[addr.Is4()], target: addr}
	if addr.Is6() {
		p.to = groupMAC(solicitedNode(addr))
	}
	return p
}

// check finds what no honest packet of either protocol has.
func (p packet) check() error {
	switch {
	case !p.from.unicast():
		return errors.New("the sender's hardware address is no interface's")
	case p.sender.IsMulticast(), p.sender.IsLoopback(), p.sender == limitedBroadcast:
		return errors.New("the sender's address is not unicast")
	case p.op == opRequest && (p.target.IsMulticast() || p.target.IsUnspecified()):
		return errors.New("the target is not unicast")
	case p.op == opReply && p.sender.IsUnspecified():
		return errors.New("nothing is told")
	}
	return nil
}
