package obstacle

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// tri is an answer that may be open.
type tri uint8

const (
	no tri = iota
	maybe
	yes
)

func triOf(b bool) tri {
	if b {
		return yes
	}
	return no
}

// Known bits are bytes of which some bits are known.
type knownBits struct{ value, known []byte }

func known(b []byte) knownBits { return knownBits{b, bytes.Repeat([]byte{0xff}, len(b))} }

// at is part of the bytes; what lies outside is unknown.
func (k knownBits) at(offset, length int) knownBits {
	out := knownBits{make([]byte, length), make([]byte, length)}
	if offset < len(k.value) {
		copy(out.value, k.value[offset:])
		copy(out.known, k.known[offset:])
	}
	return out
}

// set makes bytes known.
func (k knownBits) set(offset int, b []byte) {
	copy(k.value[offset:], b)
	for i := range b {
		k.known[offset+i] = 0xff
	}
}

// is compares with a value of the same length.
func (k knownBits) is(value []byte) tri {
	result := yes
	for i, v := range value {
		if (k.value[i]^v)&k.known[i] != 0 {
			return no
		}
		if k.known[i] != 0xff {
			result = maybe
		}
	}
	return result
}

func (k knownBits) certain() bool { return bytes.Count(k.known, []byte{0xff}) == len(k.known) }

// A knownPacket is what is known of a packet.
type knownPacket struct {
	network, transport knownBits
	meta, ct           map[uint32]knownBits
}

const (
	statusDstNAT     = 1 << 5 // IPS_DST_NAT: the destination was rewritten
	stateNew         = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	stateEstablished = 1 << 1 // NF_CT_STATE_BIT(IP_CT_ESTABLISHED), replies too
)

// newPacket knows the family, the protocol, and addresses and ports where given.
func newPacket(f state.SetID, proto state.Protocol) *knownPacket {
	length, etherType, nfproto, at := 20, uint16(unix.ETH_P_IP), byte(unix.NFPROTO_IPV4), 9
	if f == 1 {
		length, etherType, nfproto, at = 40, unix.ETH_P_IPV6, unix.NFPROTO_IPV6, 6
	}
	p := &knownPacket{network: knownBits{}.at(0, length), transport: knownBits{}.at(0, 20), ct: make(map[uint32]knownBits)}
	p.network.set(at, []byte{byte(proto)})
	p.meta = map[uint32]knownBits{
		unix.NFT_META_NFPROTO: known([]byte{nfproto}), unix.NFT_META_L4PROTO: known([]byte{byte(proto)}),
		unix.NFT_META_PROTOCOL: known(binary.BigEndian.AppendUint16(nil, etherType)),
	}
	return p
}

// from and to say the source and the destination.
func (p *knownPacket) from(addr []byte, port uint16) { p.end(0, addr, port) }
func (p *knownPacket) to(addr []byte, port uint16)   { p.end(1, addr, port) }

func (p *knownPacket) end(which int, addr []byte, port uint16) {
	start := map[int]int{4: 12, 16: 8}[len(addr)]
	p.network.set(start+which*len(addr), addr)
	p.transport.set(which*2, binary.BigEndian.AppendUint16(nil, port))
}

// by says an interface's name; key is NFT_META_IIFNAME or NFT_META_OIFNAME.
func (p *knownPacket) by(key uint32, iface string) {
	if iface != "" {
		p.meta[key] = known(append([]byte(iface), make([]byte, unix.IFNAMSIZ-len(iface))...))
	}
}

// tracked says what conntrack knows of the packet: its state, and of a flow whose
// destination was rewritten that it was.
func (p *knownPacket) tracked(state uint32, reply, rewritten bool) {
	p.ct[unix.NFT_CT_STATE] = known(binary.NativeEndian.AppendUint32(nil, state))
	p.ct[unix.NFT_CT_DIRECTION] = known([]byte{map[bool]byte{true: 1}[reply]})
	if rewritten {
		bit := binary.NativeEndian.AppendUint32(nil, statusDstNAT)
		p.ct[unix.NFT_CT_STATUS] = knownBits{bit, bit}
	}
}
