package observer

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// message returns a BGP message.
func message(kind byte, body ...byte) []byte {
	m := slices.Clone(marker)
	m = binary.BigEndian.AppendUint16(m, uint16(19+len(body)))
	return append(append(m, kind), body...)
}

// updateMessage returns an UPDATE with withdrawn and reached IPv4 prefixes and attributes.
func updateMessage(withdrawn, attributes, reached []byte) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	body = append(body, withdrawn...)
	body = binary.BigEndian.AppendUint16(body, uint16(len(attributes)))
	return message(update, append(append(body, attributes...), reached...)...)
}

var (
	four = netip.MustParseAddr("192.0.2.1")
	six  = netip.MustParseAddr("2001:db8:1::1")
)

func prefix4(a netip.Addr) []byte { return append([]byte{32}, a.AsSlice()...) }
func prefix6(a netip.Addr) []byte { return append([]byte{128}, a.AsSlice()...) }

func TestReadMessages(t *testing.T) {
	reach := append([]byte{0, 2, 1, 16}, six.AsSlice()...) // next hop: any
	reach = append(append(reach, 0), prefix6(six)...)
	unreach := append([]byte{0, 2, 1}, prefix6(six)...)
	attribute := func(kind byte, extended bool, value []byte) []byte {
		if extended {
			return append(binary.BigEndian.AppendUint16([]byte{0x90, kind}, uint16(len(value))), value...)
		}
		return append([]byte{0x80, kind, byte(len(value))}, value...)
	}
	for name, c := range map[string]struct {
		stream []byte
		want   []updateEvent
	}{
		"keepalive":      {message(4), nil},
		"end of RIB":     {updateMessage(nil, nil, nil), nil},
		"IPv4":           {updateMessage(nil, []byte{0x40, 1, 1, 0}, prefix4(four)), []updateEvent{{vip: four}}},
		"IPv4 withdrawn": {updateMessage(prefix4(four), nil, nil), []updateEvent{{vip: four, withdrawn: true}}},
		"a wider prefix": {updateMessage(nil, nil, []byte{24, 192, 0, 2}),
			[]updateEvent{{wider: netip.MustParsePrefix("192.0.2.0/24")}}},
		"IPv6":           {updateMessage(nil, attribute(mpReach, false, reach), nil), []updateEvent{{vip: six}}},
		"IPv6 at length": {updateMessage(nil, attribute(mpReach, true, reach), nil), []updateEvent{{vip: six}}},
		"IPv6 withdrawn": {updateMessage(nil, attribute(mpUnreach, false, unreach), nil),
			[]updateEvent{{vip: six, withdrawn: true}}},
		"one after a wide": {updateMessage(nil, nil, append([]byte{24, 192, 0, 3}, prefix4(four)...)),
			[]updateEvent{{wider: netip.MustParsePrefix("192.0.3.0/24")}, {vip: four}}},
	} {
		got, rest, err := readMessages(append(message(4), c.stream...))
		if err != nil || len(rest) > 0 || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %d bytes left, %v: want %v", name, got, len(rest), err, c.want)
		}
	}
	if _, _, err := readMessages(make([]byte, 30)); err == nil {
		t.Error("bytes without a BGP marker were accepted")
	}
}

// The stream arrives in pieces: one piece twice, and two pieces out of order.
func TestBGPStreamReassembly(t *testing.T) {
	stream := append(message(1, make([]byte, 10)...), updateMessage(nil, nil, prefix4(four))...)
	streams := map[netip.Addr]*bgpStream{}
	var got []updateEvent
	send := func(flags byte, seq uint32, payload []byte) {
		t.Helper()
		events, err := readPacket(streams, packetToBGP(flags, seq, payload))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, events...)
	}
	send(2, 99, nil) // SYN
	send(16, 100, stream[:35])
	send(16, 100, stream[:35])
	send(16, 150, stream[50:])
	send(16, 140, stream[40:50])
	if len(got) > 0 {
		t.Errorf("got %v before the first part arrived", got)
	}
	send(16, 120, stream[20:40])
	if want := []updateEvent{{source: netip.MustParseAddr("198.51.100.12"), vip: four}}; !slices.Equal(got, want) {
		t.Errorf("got %v: want %v", got, want)
	}
	gap := 100 + uint32(len(stream)) + 1
	for i := range uint32(maxEarly) {
		send(16, gap+i, []byte{1})
	}
	if _, err := readPacket(streams, packetToBGP(16, gap+maxEarly, []byte{1})); err == nil {
		t.Error("a gap was not detected")
	}
}

// packetToBGP returns an IPv4 packet from n2 to port 179.
func packetToBGP(flags byte, seq uint32, payload []byte) []byte {
	p := make([]byte, 40)
	p[0], p[9] = 0x45, 6
	binary.BigEndian.PutUint16(p[2:], uint16(40+len(payload)))
	copy(p[12:], netip.MustParseAddr("198.51.100.12").AsSlice())
	binary.BigEndian.PutUint16(p[20:], 40000)
	binary.BigEndian.PutUint16(p[22:], 179)
	binary.BigEndian.PutUint32(p[24:], seq)
	p[32], p[33] = 0x50, flags
	return append(p, payload...)
}
