package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The lab listens on the router's segment to the nodes, to see when a node says
// that it has an address: not when the router has got round to it. It reads just
// enough of BGP for that, and shares no code with what wrote it.

// A wireEvent is a prefix in an UPDATE that has reached the router.
type wireEvent struct {
	at        time.Time
	node      string
	vip       netip.Addr
	withdrawn bool
}

// openTap opens a socket that receives all IPv4 packets of an interface of the
// calling thread's namespace, without link-layer header: the sessions are IPv4.
func openTap(iface string) (int, error) {
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
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: int(req.Uint32())}))
}

// A speakersVoice is the stream of one node's BGP session to the router.
type speakersVoice struct {
	source uint16 // port; another one is another session
	next   uint32 // sequence number
	text   []byte // received, not yet a whole message
	// early are segments by sequence number that came before one that they follow: two
	// that are sent from two processors may overtake each other.
	early map[uint32][]byte
}

// maxEarly is after how many of them the missing one is not waited for any longer.
const maxEarly = 16

// hear takes in one IPv4 packet and returns what it completes.
func hear(voices map[netip.Addr]*speakersVoice, packet []byte) (heard []wireEvent, err error) {
	src, segment, ok := segmentToBGP(packet)
	if !ok {
		return nil, nil
	}
	source, seq := binary.BigEndian.Uint16(segment), binary.BigEndian.Uint32(segment[4:])
	payload := segment[min(len(segment), int(segment[12]>>4)*4):]
	if len(payload) == 0 && segment[13]&2 == 0 {
		return nil, nil
	}
	v := voices[src]
	if syn := segment[13]&2 != 0; syn || v == nil || v.source != source {
		if !syn {
			return nil, nil // a session from before
		}
		voices[src] = &speakersVoice{source: source, next: seq + 1, early: map[uint32][]byte{}}
		return nil, nil
	}
	if missed := int32(seq - v.next); missed > 0 && len(v.early) == maxEarly {
		return nil, fmt.Errorf("the tap missed %d bytes of %s", missed, src)
	}
	v.take(seq, payload)
	heard, v.text, err = readMessages(v.text)
	for i := range heard {
		heard[i].node = nodeName(src)
	}
	return heard, err
}

// take appends a segment, and early segments that follow it.
func (v *speakersVoice) take(seq uint32, payload []byte) {
	if int32(seq-v.next) > 0 {
		v.early[seq] = bytes.Clone(payload)
		return
	}
	for ok := true; ok; payload, ok = v.early[v.next] {
		delete(v.early, v.next)
		if skip := int(int32(v.next - seq)); skip < len(payload) { // else it was seen already, or is empty
			v.text = append(v.text, payload[skip:]...)
			v.next += uint32(len(payload) - skip)
		}
		seq = v.next
	}
}

// segmentToBGP returns the TCP segment of a packet to port 179.
func segmentToBGP(packet []byte) (src netip.Addr, segment []byte, ok bool) {
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

// What the lab needs to know of RFC 4271 and RFC 4760.
const (
	update    = 2  // type of message
	mpReach   = 14 // attributes
	mpUnreach = 15
)

var marker = bytes.Repeat([]byte{0xff}, 16)

// readMessages reads the whole messages of a stream (RFC 4271 §4.1), and returns
// the rest.
func readMessages(stream []byte) (heard []wireEvent, rest []byte, err error) {
	for len(stream) >= 19 {
		if !bytes.Equal(stream[:16], marker) {
			return heard, nil, errors.New("no BGP marker where a message should begin")
		}
		length := int(binary.BigEndian.Uint16(stream[16:]))
		if length > len(stream) {
			break
		}
		if stream[18] == update {
			u, err := readUpdate(stream[19:length])
			if err != nil {
				return heard, nil, err
			}
			heard = append(heard, u...)
		}
		stream = stream[length:]
	}
	return heard, stream, nil
}

// readUpdate reads the prefixes of an UPDATE (RFC 4271 §4.3): IPv4 at both ends,
// IPv6 in the attributes MP_REACH_NLRI and MP_UNREACH_NLRI (RFC 4760).
func readUpdate(b []byte) (heard []wireEvent, err error) {
	withdrawn, b, ok := cutCounted(b)
	if !ok {
		return nil, errors.New("UPDATE: withdrawn routes are cut short")
	}
	heard = append(heard, hostPrefixes(withdrawn, 4, true)...)
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
			heard = append(heard, hostPrefixes(value[min(length, 5+int(value[3])):], addrSize(value), false)...)
		case kind == mpUnreach && length >= 3:
			heard = append(heard, hostPrefixes(value[3:], addrSize(value), true)...)
		}
	}
	return append(heard, hostPrefixes(reached, 4, false)...), nil
}

// cutCounted cuts off a field that begins with its length in two bytes.
func cutCounted(b []byte) (field, rest []byte, ok bool) {
	if len(b) < 2 || 2+int(binary.BigEndian.Uint16(b)) > len(b) {
		return nil, nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:end], b[end:], true
}

// addrSize is that of the address family that a multiprotocol attribute begins
// with.
func addrSize(value []byte) int {
	if binary.BigEndian.Uint16(value) == 2 {
		return 16
	}
	return 4
}

// hostPrefixes returns the prefixes that are a single address.
func hostPrefixes(b []byte, size int, withdrawn bool) (heard []wireEvent) {
	for len(b) > 0 {
		bits := int(b[0])
		end := min(len(b), 1+(bits+7)/8)
		if bits == size*8 && end == 1+size {
			vip, _ := netip.AddrFromSlice(b[1:end])
			heard = append(heard, wireEvent{vip: vip, withdrawn: withdrawn})
		}
		b = b[end:]
	}
	return heard
}
