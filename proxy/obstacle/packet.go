package obstacle

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// ternary is a truth value with a third state, ordered so that min is "and" and yes-x is "not".
type ternary uint8

const (
	no ternary = iota
	maybe
	yes
)

func ternaryOf(b bool) ternary {
	if b {
		return yes
	}
	return no
}

// knownBits are bytes of which some bits are known: known has a 1 for each of them. Other bits
// of value are meaningless.
type knownBits struct{ value, known []byte }

// known returns bytes that are completely known.
func known(b []byte) knownBits { return knownBits{b, bytes.Repeat([]byte{0xff}, len(b))} }

// at returns a copy of length bytes from offset; bytes beyond the end are unknown.
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

// is reports whether the bytes equal a value, which must not be longer.
func (k knownBits) is(value []byte) ternary {
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

// certain reports whether all bits are known.
func (k knownBits) certain() bool { return bytes.Count(k.known, []byte{0xff}) == len(k.known) }

// A knownPacket is what is known of a packet: its headers from layer 3 on, and its values by
// the keys of the expressions meta (NFT_META_*) and ct (NFT_CT_*). A missing key is unknown.
type knownPacket struct {
	network, transport knownBits
	meta, ct           map[uint32]knownBits
	mark               markBits
}

// Bits of conntrack's status and states, from linux/netfilter/nf_conntrack_common.h.
const (
	statusDstNAT     = 1 << 5 // IPS_DST_NAT: the destination was rewritten
	stateNew         = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	stateEstablished = 1 << 1 // NF_CT_STATE_BIT(IP_CT_ESTABLISHED), replies too
)

// newPacket returns a packet of a family and protocol; addresses and ports are unknown. Offsets
// are those of headers without options: RFC 791 section 3.1, RFC 8200 section 3.
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

// from and to set the source and the destination.
func (p *knownPacket) from(addr []byte, port uint16) { p.end(0, addr, port) }
func (p *knownPacket) to(addr []byte, port uint16)   { p.end(1, addr, port) }

// end sets the source (which 0) or the destination (1). The length of addr says the family.
func (p *knownPacket) end(which int, addr []byte, port uint16) {
	start := map[int]int{4: 12, 16: 8}[len(addr)]
	p.network.set(start+which*len(addr), addr)
	p.transport.set(which*2, binary.BigEndian.AppendUint16(nil, port))
}

// by sets an interface's name; key is NFT_META_IIFNAME or NFT_META_OIFNAME. An empty name stays
// unknown. The kernel compares names padded with zeros to IFNAMSIZ.
func (p *knownPacket) by(key uint32, iface string) {
	if iface != "" {
		p.meta[key] = known(append([]byte(iface), make([]byte, unix.IFNAMSIZ-len(iface))...))
	}
}

// tracked sets what conntrack knows of the packet: its state and direction, and whether the
// destination of its flow was rewritten. Other bits of the status stay unknown.
func (p *knownPacket) tracked(state uint32, reply, rewritten bool) {
	p.ct[unix.NFT_CT_STATE] = known(binary.NativeEndian.AppendUint32(nil, state))
	p.ct[unix.NFT_CT_DIRECTION] = known([]byte{map[bool]byte{true: 1}[reply]})
	if rewritten {
		bit := binary.NativeEndian.AppendUint32(nil, statusDstNAT)
		p.ct[unix.NFT_CT_STATUS] = knownBits{bit, bit}
	}
}
