package fastpath

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// What a program may return for a frame: TCX_NEXT, TCX_DROP and TC_ACT_REDIRECT.
const (
	next     = -1
	drop     = 2
	redirect = 7
)

// TCP flags.
const (
	fin = 1
	syn = 2
	rst = 4
	ack = 16
)

// A packet is a TCP or UDP packet, or an ICMP error about one.
type packet struct {
	from, to netip.AddrPort
	protocol uint8
	flags    uint8 // of TCP
	ttl      uint8 // 0: 64
	payload  []byte
	noSum    bool // UDP without a checksum
}

// sum returns the Internet checksum (RFC 1071) before inversion.
func sum(parts ...[]byte) uint16 {
	var s uint32
	all := slices.Concat(parts...)
	for i := 0; i+1 < len(all); i += 2 {
		s += uint32(binary.BigEndian.Uint16(all[i:]))
	}
	if len(all)%2 == 1 {
		s += uint32(all[len(all)-1]) << 8
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// pseudo returns the pseudo-header of layer 4 checksums.
func pseudo(from, to netip.Addr, protocol uint8, size int) []byte {
	b := slices.Concat(from.AsSlice(), to.AsSlice())
	return binary.BigEndian.AppendUint32(append(b, 0, protocol), uint32(size))
}

// layer4 returns the packet without the IP header.
func (p packet) layer4() []byte {
	var b []byte
	b = binary.BigEndian.AppendUint16(b, p.from.Port())
	b = binary.BigEndian.AppendUint16(b, p.to.Port())
	at := 6
	if p.protocol == TCP {
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, p.flags, 0x10, 0, 0, 0, 0, 0)
		at = 16
	} else {
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(p.payload)))
		b = append(b, 0, 0)
	}
	b = append(b, p.payload...)
	if !p.noSum {
		binary.BigEndian.PutUint16(b[at:], ^sum(pseudo(p.from.Addr(), p.to.Addr(), p.protocol, len(b)), b))
	}
	return b
}

// network adds the IP header.
func network(from, to netip.Addr, protocol, ttl uint8, content []byte) []byte {
	var b []byte
	if from.Is4() {
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+len(content)))
		b = append(b, 0x12, 0x34, 0x40, 0, ttl, protocol, 0, 0)
		b = slices.Concat(b, from.AsSlice(), to.AsSlice())
		binary.BigEndian.PutUint16(b[10:], ^sum(b))
		return append(b, content...)
	}
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(content)))
	return slices.Concat(append(b, protocol, ttl), from.AsSlice(), to.AsSlice(), content)
}

func (p packet) ip() []byte {
	ttl := p.ttl
	if ttl == 0 {
		ttl = 64
	}
	return network(p.from.Addr(), p.to.Addr(), p.protocol, ttl, p.layer4())
}

// icmp returns an ICMP error about a packet, sent to the packet's source.
func icmp(from, to netip.Addr, about []byte, tooBig bool) []byte {
	kind, code, protocol := byte(3), byte(1), uint8(1)
	if from.Is6() {
		kind, code, protocol = 1, 3, 58
	}
	if tooBig {
		code = 4
		if from.Is6() {
			kind, code = 2, 0
		}
	}
	b := append([]byte{kind, code, 0, 0, 0, 0, 5, 20}, about[:min(len(about), 60)]...)
	var before []byte
	if from.Is6() {
		before = pseudo(from, to, protocol, len(b))
	}
	binary.BigEndian.PutUint16(b[2:], ^sum(before, b))
	return network(from, to, protocol, 64, b)
}

// in adds an Ethernet header with this destination MAC.
func in(mac net.HardwareAddr, ip []byte) []byte {
	kind := []byte{0x08, 0x00}
	if ip[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	return slices.Concat(mac, net.HardwareAddr{2, 0, 0, 0, 0, 9}, kind, ip)
}

// read parses a packet, and verifies all checksums.
func read(t *testing.T, frame []byte) packet {
	t.Helper()
	from, to, protocol, ttl, content := open(t, frame[14:])
	p := packet{protocol: protocol, ttl: ttl}
	p.from = netip.AddrPortFrom(from, binary.BigEndian.Uint16(content))
	p.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(content[2:]))
	if protocol == UDP {
		p.noSum = content[6] == 0 && content[7] == 0
		p.payload = content[8:]
	} else {
		p.flags, p.payload = content[13], content[20:]
	}
	if s := sum(pseudo(from, to, protocol, len(content)), content); s != 0xffff && !p.noSum {
		t.Errorf("the checksum of %s to %s is wrong", p.from, p.to)
	}
	return p
}

// open removes the IP header, and verifies its checksum.
func open(t *testing.T, b []byte) (from, to netip.Addr, protocol, ttl uint8, content []byte) {
	t.Helper()
	if b[0]>>4 == 6 {
		from, _ = netip.AddrFromSlice(b[8:24])
		to, _ = netip.AddrFromSlice(b[24:40])
		return from, to, b[6], b[7], b[40:]
	}
	if sum(b[:20]) != 0xffff {
		t.Errorf("a header's checksum is wrong")
	}
	from, _ = netip.AddrFromSlice(b[12:16])
	to, _ = netip.AddrFromSlice(b[16:20])
	return from, to, b[9], b[8], b[20:]
}

// readError parses an ICMP error: its destination, its source, and the quoted packet.
func readError(t *testing.T, frame []byte) (from, to netip.Addr, about packet) {
	t.Helper()
	from, to, protocol, _, content := open(t, frame[14:])
	var before []byte
	if from.Is6() {
		before = pseudo(from, to, protocol, len(content))
	}
	if sum(before, content) != 0xffff {
		t.Errorf("the checksum of an error from %s to %s is wrong", from, to)
	}
	a, b, protocol, _, ports := open(t, content[8:])
	about.protocol = protocol
	about.from = netip.AddrPortFrom(a, binary.BigEndian.Uint16(ports))
	about.to = netip.AddrPortFrom(b, binary.BigEndian.Uint16(ports[2:]))
	return from, to, about
}

// A skb has the first fields of struct __sk_buff.
type skb struct {
	_       [10]uint32
	Ifindex uint32
}

func (l *lab) link(name string) netlink.Link {
	l.t.Helper()
	if l.links[name] != nil {
		return l.links[name]
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		l.t.Fatal(err)
	}
	l.links[name] = link
	return link
}

func (l *lab) mac(name string) net.HardwareAddr { return l.link(name).Attrs().HardwareAddr }

// pass runs a program on a frame as if it had arrived on an interface.
func (l *lab) pass(program *ebpf.Program, iface string, frame []byte) (int32, []byte) {
	l.t.Helper()
	o := ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+256),
		Context: skb{Ifindex: uint32(l.link(iface).Attrs().Index)},
	}
	verdict, err := program.Run(&o)
	if err != nil {
		l.t.Fatal(err)
	}
	return int32(verdict), o.DataOut
}

// arrive is pass for a client's packet.
func (l *lab) arrive(p *Datapath, ip []byte) (int32, []byte) {
	l.t.Helper()
	return l.pass(p.kernel.Outward, "eth0", in(l.mac("eth0"), ip))
}

// comeBack is pass for a packet from the pod behind an interface.
func (l *lab) comeBack(p *Datapath, iface string, ip []byte) (int32, []byte) {
	l.t.Helper()
	return l.pass(p.kernel.Inward, iface, in(l.mac(iface), ip))
}
