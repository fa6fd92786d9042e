package l2

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mac returns a test's hardware address by its last byte: 1 is the node's, 2 another
// interface's of the node, 3 another speaker's; clients have 0x10 and above.
func mac(last byte) MAC { return MAC{2, 0, 0, 0, 0, last} }

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The frames sent, byte by byte, as the RFCs define them. Parsing them returns the packet.
func TestFrames(t *testing.T) {
	v4, v6 := ip("192.0.2.1"), ip("2001:db8::1")
	request := packet{op: opRequest, from: mac(0x10), to: broadcast, sender: ip("192.0.2.9"), target: v4}
	solicit := packet{
		op: opRequest, from: mac(0x10), to: groupMAC(solicitedNode(v6)), sender: ip("2001:db8::9"), target: v6,
	}
	const pad = "000000000000000000000000000000000000"
	for _, tt := range []struct {
		name string
		p    packet
		want string
	}{
		{"ARP request", request,
			"ffffffffffff 020000000010 0806 0001 0800 06 04 0001 020000000010 c0000209 000000000000 c0000201" + pad},
		{"its answer", replyTo(request, mac(1)),
			"020000000010 020000000001 0806 0001 0800 06 04 0002 020000000001 c0000201 020000000010 c0000209" + pad},
		{"ARP probe", probe(v4, mac(1)),
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 00000000 000000000000 c0000201" + pad},
		{"answer to a probe", replyTo(probe(v4, mac(0x10)), mac(1)),
			"020000000010 020000000001 0806 0001 0800 06 04 0002 020000000001 c0000201 020000000010 00000000" + pad},
		{"ARP announcement", announcement(v4, mac(1)),
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 c0000201 000000000000 c0000201" + pad},
		{"its other form", confirmation(v4, mac(1)),
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0002 020000000001 c0000201 020000000001 c0000201" + pad},

		{"solicitation", solicit,
			"3333ff000001 020000000010 86dd 60000000 0020 3a ff 20010db8000000000000000000000009 " +
				"ff0200000000000000000001ff000001" +
				"87 00 1c12 00000000 20010db8000000000000000000000001 0101 020000000010"},
		{"its answer", replyTo(solicit, mac(1)), // solicited, override
			"020000000010 020000000001 86dd 60000000 0020 3a ff 20010db8000000000000000000000001 " +
				"20010db8000000000000000000000009" +
				"88 00 8a6c 60000000 20010db8000000000000000000000001 0201 020000000001"},
		{"DAD", probe(v6, mac(1)),
			"3333ff000001 020000000001 86dd 60000000 0018 3a ff 00000000000000000000000000000000 " +
				"ff0200000000000000000001ff000001" +
				"87 00 4ced 00000000 20010db8000000000000000000000001"},
		{"answer to DAD", replyTo(probe(v6, mac(0x10)), mac(1)), // to all, override
			"333300000001 020000000001 86dd 60000000 0020 3a ff 20010db8000000000000000000000001 " +
				"ff020000000000000000000000000001" +
				"88 00 f92a 20000000 20010db8000000000000000000000001 0201 020000000001"},
		{"unsolicited advertisement", announcement(v6, mac(1)),
			"333300000001 020000000001 86dd 60000000 0020 3a ff 20010db8000000000000000000000001 " +
				"ff020000000000000000000000000001" +
				"88 00 f92a 20000000 20010db8000000000000000000000001 0201 020000000001"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			proto := protocolOf(tt.p.target)
			got, err := proto.marshal(tt.p)
			if err != nil {
				t.Fatal(err)
			}
			if want := hex.EncodeToString(unhex(t, tt.want)); hex.EncodeToString(got) != want {
				t.Errorf("\ngot  %x\nwant %s", got, want)
			}
			back, err := proto.parse(got)
			want := tt.p
			if diff := cmp.Diff(want, forget(back, want), cmp.AllowUnexported(packet{}),
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
				t.Errorf("parsed again (%v): %s", err, diff)
			}
		})
	}
}

// forget removes the field that Neighbor Discovery does not have.
func forget(p, like packet) packet {
	if like.target.Is6() {
		p.about = like.about
	}
	return p
}

// A message with any one bit flipped, in it or in its addresses, is rejected.
func TestChecksum(t *testing.T) {
	frame, err := marshalNDP(packet{
		op: opRequest, from: mac(0x10), to: mac(1), sender: ip("2001:db8::9"), target: ip("2001:db8::1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for bit := 8 * (14 + 8); bit < 8*len(frame); bit++ {
		bad := append([]byte(nil), frame...)
		bad[bit/8] ^= 1 << (bit % 8)
		if p, err := parseNDP(bad); err == nil {
			t.Fatalf("bit %d flipped: %+v", bit, p)
		}
	}
}

// Malformed frames are rejected, and well-formed ones are not.
func TestMalformed(t *testing.T) {
	good := map[*protocol][]byte{}
	for _, p := range []packet{
		{op: opRequest, from: mac(0x10), to: broadcast, sender: ip("192.0.2.9"), target: ip("192.0.2.1")},
		{op: opRequest, from: mac(0x10), to: mac(1), sender: ip("2001:db8::9"), target: ip("2001:db8::1")},
	} {
		proto := protocolOf(p.target)
		b, err := proto.marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		good[proto] = b
	}
	set := func(at int, bytes ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], bytes); return b }
	}
	const icmp = 14 + sizeofIPv6
	for _, tt := range []struct {
		name   string
		proto  *protocol
		change func([]byte) []byte
		want   string
	}{
		{"nothing changed", arpProtocol, set(0), ""},
		{"nothing changed", ndpProtocol, set(0), ""},
		{"no frame", arpProtocol, func([]byte) []byte { return nil }, "EOF"},
		{"no frame", ndpProtocol, func([]byte) []byte { return nil }, "EOF"},
		{"cut off", arpProtocol, func(b []byte) []byte { return b[:30] }, "EOF"},
		{"cut off", ndpProtocol, func(b []byte) []byte { return b[:icmp+10] }, "cut off"},
		{"another EtherType", arpProtocol, set(12, 0x80, 0x35), "EtherType 0x8035"},
		{"another EtherType", ndpProtocol, set(12, 0x08, 0x00), "EtherType 0x0800"},
		{"InfiniBand", arpProtocol, set(14, 0, 32), "not IPv4 over Ethernet"},
		{"IPv6 in ARP", arpProtocol, set(16, 0x86, 0xdd), "not IPv4 over Ethernet"},
		{"long hardware addresses", arpProtocol, set(18, 8), "not IPv4 over Ethernet"},
		{"no addresses", arpProtocol, set(18, 0, 0), "Invalid Sender IP address"},
		{"reverse ARP", arpProtocol, set(20, 0, 3), "operation 3"},
		{"sender's MAC zero", arpProtocol, set(22, 0, 0, 0, 0, 0, 0), "hardware address is not unicast"},
		{"sender's MAC broadcast", arpProtocol, set(22, 255, 255, 255, 255, 255, 255),
			"hardware address is not unicast"},
		{"sender multicast", arpProtocol, set(28, 224), "not unicast"},
		{"sender broadcast", arpProtocol, set(28, 255, 255, 255, 255), "not unicast"},
		{"sender loopback", arpProtocol, set(28, 127), "not unicast"},
		{"target unspecified", arpProtocol, set(38, 0, 0, 0, 0), "target address is not unicast"},

		{"IPv4", ndpProtocol, set(14, 0x45), "IPv6 header missing"},
		{"extension header", ndpProtocol, set(14+6, 0), "protocol 0"},
		{"forwarded", ndpProtocol, set(14+7, 254), "hop limit 254, want 255"},
		{"length too great", ndpProtocol, set(14+4, 1), "cut off"},
		{"length too small", ndpProtocol, set(14+4, 0, 3), "ICMPv6 header missing"},
		{"another code", ndpProtocol, set(icmp+1, 1), "ICMPv6 code 1"},
		{"wrong checksum", ndpProtocol, set(icmp+2, 1, 2), "wrong checksum"},
	} {
		t.Run(tt.proto.name+" "+tt.name, func(t *testing.T) {
			_, err := tt.proto.parse(tt.change(append([]byte(nil), good[tt.proto]...)))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// What RFC 4861 §7.1 forbids in messages with a right checksum.
func TestMalformedNDP(t *testing.T) {
	v6, client := ip("2001:db8::1"), ip("2001:db8::9")
	body := func(kind byte, flags byte, target netip.Addr, options string) []byte {
		b := []byte{kind, 0, 0, 0, flags, 0, 0, 0}
		return append(append(b, target.AsSlice()...), unhex(t, options)...)
	}
	const sourceLL, targetLL = "0101020000000010", "0201020000000010"
	for _, tt := range []struct {
		name     string
		from, to netip.Addr
		message  []byte
		want     string
	}{
		{"solicitation", client, v6, body(135, 0, v6, sourceLL), ""},
		{"with a nonce", client, v6, body(135, 0, v6, sourceLL+"0e01010203040506"), ""},
		{"without a link-layer address", client, v6, body(135, 0, v6, ""), ""},
		{"with an unknown option", client, v6, body(135, 0, v6, "fd01000000000000"+sourceLL), ""},
		{"probe", netip.IPv6Unspecified(), solicitedNode(v6), body(135, 0, v6, ""), ""},
		{"probe to one", netip.IPv6Unspecified(), v6, body(135, 0, v6, ""), "a probe to 2001:db8::1"},
		{"probe with a link-layer address", netip.IPv6Unspecified(), solicitedNode(v6), body(135, 0, v6, sourceLL),
			"a probe with a source link-layer address"},
		{"multicast target", client, v6, body(135, 0, ip("ff02::1"), ""), "target address is not unicast"},
		{"multicast source", ip("ff02::9"), v6, body(135, 0, v6, ""), "not unicast"},
		{"option of no length", client, v6, body(135, 0, v6, "0100020000000010"), "unmarshal"},
		{"option that is cut off", client, v6, body(135, 0, v6, "0102020000000010"), "unmarshal"},
		{"link-layer address that is a group", client, v6, body(135, 0, v6, "0101030000000010"),
			"hardware address is not unicast"},
		{"no target", client, v6, []byte{135, 0, 0, 0, 0, 0, 0, 0}, "unmarshal"},
		{"advertisement", v6, ip("ff02::1"), body(136, 0x20, v6, targetLL), ""},
		{"advertisement solicited by all", v6, ip("ff02::1"), body(136, 0x60, v6, targetLL), "with the solicited flag"},
		{"advertisement of a group", v6, ip("ff02::1"), body(136, 0x20, ip("ff02::2"), targetLL), "not unicast"},
		{"router solicitation", client, v6, body(133, 0, v6, ""), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			header := ipv6Header{tt.from, tt.to}
			sum := checksum(header, tt.message)
			tt.message[2], tt.message[3] = byte(sum>>8), byte(sum)
			frame := append(unhex(t, "020000000001 020000000010 86dd"), header.marshal(tt.message)...)
			p, err := parseNDP(frame)
			if tt.message[0] == 133 {
				if err == nil {
					t.Errorf("%+v", p)
				}
				return
			}
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if err == nil && p.from != mac(0x10) {
				t.Errorf("from %s", p.from)
			}
		})
	}
}

// The parsers return for any input, and answers to packets that they accept are
// well-formed.
func fuzz(f *testing.F, proto *protocol, seeds ...packet) {
	for _, p := range seeds {
		b, err := proto.marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-10])
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if proto == ndpProtocol {
			sum(frame) // guessing a checksum takes too long
		}
		p, err := proto.parse(frame)
		if err != nil {
			return
		}
		held := &address{phase: Held}
		out, v := reply(p, claims{mac: mac(1), addresses: map[netip.Addr]*address{p.target: held}})
		if v != answered {
			return
		}
		b, err := proto.marshal(out)
		if err != nil {
			t.Fatalf("%+v: %v", out, err)
		}
		if back, err := proto.parse(b); err != nil || back.from != mac(1) || back.sender != p.target ||
			back.to != out.to {
			t.Fatalf("%+v comes back as %+v: %v", out, back, err)
		}
	})
}

// sum writes the right checksum into a frame that has a place for it.
func sum(frame []byte) {
	const icmp = 14 + sizeofIPv6
	if len(frame) < icmp+4 {
		return
	}
	end := min(len(frame), icmp+int(binary.BigEndian.Uint16(frame[14+4:])))
	if end < icmp+4 {
		return
	}
	ip := ipv6Header{netip.AddrFrom16([16]byte(frame[14+8:])), netip.AddrFrom16([16]byte(frame[14+24:]))}
	message := frame[icmp:end]
	message[2], message[3] = 0, 0
	binary.BigEndian.PutUint16(message[2:], checksum(ip, message))
}

func FuzzARP(f *testing.F) {
	a, b := ip("192.0.2.1"), ip("192.0.2.9")
	fuzz(f, arpProtocol, packet{op: opRequest, from: mac(0x10), to: broadcast, sender: b, target: a},
		probe(a, mac(0x10)), announcement(a, mac(0x10)), confirmation(a, mac(0x10)),
		packet{op: opReply, from: mac(0x10), to: mac(1), sender: b, target: a, about: mac(1)})
}

func FuzzNDP(f *testing.F) {
	a, b := ip("2001:db8::1"), ip("2001:db8::9")
	fuzz(f, ndpProtocol, packet{op: opRequest, from: mac(0x10), to: mac(1), sender: b, target: a}, probe(a, mac(0x10)),
		announcement(a, mac(0x10)), packet{op: opReply, from: mac(0x10), to: mac(1), sender: b, target: a})
}
