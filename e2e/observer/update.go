package observer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The lab captures packets on the router's segment to the nodes, to know when a node
// announces an address, and not when the router has processed it. It reads only the
// necessary part of BGP and shares no code with the speaker.

// An updateEvent is a prefix in an UPDATE that has reached the router.
type updateEvent struct {
	at        time.Time
	node      string
	source    netip.Addr // of the packet, until the node is known
	vip       netip.Addr
	wider     netip.Prefix // a prefix of several addresses, instead of vip
	withdrawn bool
}

// openTap opens a socket that receives all packets of a protocol, such as ETH_P_IP, on an
// interface in the calling thread's namespace, without link-layer header.
func openTap(iface string, protocol uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	req, err := unix.NewIfreq(iface)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err != nil {
		return 0, fmt.Errorf("interface %s: %w", iface, err)
	}
	protocol = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: int(req.Uint32())}))
}

// A bgpStream reassembles the TCP stream of one node's BGP session to the router.
type bgpStream struct {
	source uint16 // port; another port is another session
	next   uint32 // sequence number expected next
	text   []byte // received, and not yet a complete message
	// early holds segments that arrived before their predecessor, by sequence number. Segments
	// sent from two processors may overtake each other.
	early map[uint32][]byte
}

// maxEarly bounds the segments that wait for a missing predecessor.
const maxEarly = 16

// readPacket adds one packet and returns the events of the messages that it completes.
func readPacket(streams map[netip.Addr]*bgpStream, packet []byte) (events []updateEvent, err error) {
	src, segment, ok := segmentToBGP(packet)
	if !ok {
		return nil, nil
	}
	source, seq := binary.BigEndian.Uint16(segment), binary.BigEndian.Uint32(segment[4:])
	payload := segment[min(len(segment), int(segment[12]>>4)*4):]
	if len(payload) == 0 && segment[13]&2 == 0 {
		return nil, nil
	}
	v := streams[src]
	if syn := segment[13]&2 != 0; syn || v == nil || v.source != source {
		if !syn {
			return nil, nil // the session began before the capture
		}
		streams[src] = &bgpStream{source: source, next: seq + 1, early: map[uint32][]byte{}}
		return nil, nil
	}
	if missed := int32(seq - v.next); missed > 0 && len(v.early) == maxEarly {
		return nil, fmt.Errorf("the tap missed %d bytes of %s", missed, src)
	}
	v.add(seq, payload)
	events, v.text, err = readMessages(v.text)
	for i := range events {
		events[i].source = src
	}
	return events, err
}

// add appends a segment, and the early segments that follow it.
func (v *bgpStream) add(seq uint32, payload []byte) {
	if int32(seq-v.next) > 0 {
		v.early[seq] = bytes.Clone(payload)
		return
	}
	for ok := true; ok; payload, ok = v.early[v.next] {
		delete(v.early, v.next)
		if skip := int(int32(v.next - seq)); skip < len(payload) { // otherwise the segment is a duplicate or empty
			v.text = append(v.text, payload[skip:]...)
			v.next += uint32(len(payload) - skip)
		}
		seq = v.next
	}
}

// segmentToBGP returns the TCP segment of a packet to port 179.
func segmentToBGP(packet []byte) (src netip.Addr, segment []byte, ok bool) {
	if len(packet) > 40 && packet[0]>>4 == 6 {
		return segment6ToBGP(packet)
	}
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != unix.IPPROTO_TCP {
		return src, nil, false
	}
	header, total := int(packet[0]&15)*4, int(binary.BigEndian.Uint16(packet[2:]))
	if total > len(packet) || header+20 > total {
		return src, nil, false
	}
	src, _ = netip.AddrFromSlice(packet[12:16])
	segment = packet[header:total]
	return src, segment, binary.BigEndian.Uint16(segment[2:]) == 179
}

// segment6ToBGP does so for IPv6. Nodes send no extension headers.
func segment6ToBGP(packet []byte) (src netip.Addr, segment []byte, ok bool) {
	const header = 40
	total := header + int(binary.BigEndian.Uint16(packet[4:]))
	if packet[6] != unix.IPPROTO_TCP || total > len(packet) || header+20 > total {
		return src, nil, false
	}
	src, _ = netip.AddrFromSlice(packet[8:24])
	segment = packet[header:total]
	return src, segment, binary.BigEndian.Uint16(segment[2:]) == 179
}

// Constants of RFC 4271 and RFC 4760.
const (
	update    = 2  // message type
	mpReach   = 14 // path attributes
	mpUnreach = 15
)

var marker = bytes.Repeat([]byte{0xff}, 16)

// readMessages reads the complete messages of a stream (RFC 4271 §4.1) and returns the
// remaining bytes.
func readMessages(stream []byte) (events []updateEvent, rest []byte, err error) {
	for len(stream) >= 19 {
		if !bytes.Equal(stream[:16], marker) {
			return events, nil, errors.New("no BGP marker where a message should begin")
		}
		length := int(binary.BigEndian.Uint16(stream[16:]))
		if length > len(stream) {
			break
		}
		if stream[18] == update {
			u, err := readUpdate(stream[19:length])
			if err != nil {
				return events, nil, err
			}
			events = append(events, u...)
		}
		stream = stream[length:]
	}
	return events, stream, nil
}

// readUpdate reads the prefixes of an UPDATE (RFC 4271 §4.3): IPv4 prefixes at both ends,
// IPv6 prefixes in the attributes MP_REACH_NLRI and MP_UNREACH_NLRI (RFC 4760).
func readUpdate(b []byte) (events []updateEvent, err error) {
	withdrawn, b, ok := cutCounted(b)
	if !ok {
		return nil, errors.New("UPDATE: withdrawn routes are cut short")
	}
	events = append(events, prefixes(withdrawn, 4, true)...)
	attrs, reached, ok := cutCounted(b)
	if !ok {
		return nil, errors.New("UPDATE: attributes are cut short")
	}
	for len(attrs) >= 4 {
		flags, kind := attrs[0], attrs[1]
		length, header := int(attrs[2]), 3
		if flags&0x10 != 0 { // extended length
			length, header = int(binary.BigEndian.Uint16(attrs[2:])), 4
		}
		if header+length > len(attrs) {
			return nil, errors.New("UPDATE: an attribute is cut short")
		}
		value := attrs[header : header+length]
		attrs = attrs[header+length:]
		switch {
		case kind == mpReach && length >= 5: // family, next hop, one reserved byte
			events = append(events, prefixes(value[min(length, 5+int(value[3])):], addrSize(value), false)...)
		case kind == mpUnreach && length >= 3:
			events = append(events, prefixes(value[3:], addrSize(value), true)...)
		}
	}
	return append(events, prefixes(reached, 4, false)...), nil
}

// cutCounted cuts off a field that begins with its two-byte length.
func cutCounted(b []byte) (field, rest []byte, ok bool) {
	if len(b) < 2 || 2+int(binary.BigEndian.Uint16(b)) > len(b) {
		return nil, nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:end], b[end:], true
}

// addrSize returns the address size of the family at the start of a multiprotocol
// attribute.
func addrSize(value []byte) int {
	if binary.BigEndian.Uint16(value) == 2 {
		return 16
	}
	return 4
}

// prefixes reads prefixes of addresses of a size.
func prefixes(b []byte, size int, withdrawn bool) (events []updateEvent) {
	for len(b) > 0 {
		bits := int(b[0])
		end := min(len(b), 1+(bits+7)/8)
		vip, _ := netip.AddrFromSlice(append(bytes.Clone(b[1:end]), make([]byte, max(0, size+1-end))...))
		switch {
		case bits == size*8 && end == 1+size:
			events = append(events, updateEvent{vip: vip, withdrawn: withdrawn})
		case bits < size*8:
			events = append(events, updateEvent{wider: netip.PrefixFrom(vip, bits), withdrawn: withdrawn})
		}
		b = b[end:]
	}
	return events
}
