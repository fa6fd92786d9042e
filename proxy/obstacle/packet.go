package obstacle

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
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

// A field is bytes of a packet, or of a register.
type field []struct {
	value byte
	known bool
}

// known returns a field that is completely known.
func known(b ...byte) field {
	f := make(field, len(b))
	f.set(0, b)
	return f
}

func (f field) set(at int, b []byte) {
	for i, v := range b {
		f[at+i].value, f[at+i].known = v, true
	}
}

// at returns a copy of length bytes from offset; bytes beyond the end are unknown.
func (f field) at(offset, length int) field {
	out := make(field, length)
	if offset < len(f) {
		copy(out, f[offset:])
	}
	return out
}

// is reports whether the field has a value of the same length.
func (f field) is(value []byte) ternary {
	result := yes
	for i, v := range value {
		switch {
		case !f[i].known:
			result = maybe
		case f[i].value != v:
			return no
		}
	}
	return result
}

// bytes returns the value if all of it is known.
func (f field) bytes() (value []byte, ok bool) {
	for _, b := range f {
		if !b.known {
			return nil, false
		}
		value = append(value, b.value)
	}
	return value, true
}

// A packet is what is known of one: its headers from layer 3 on, and its values by the keys of the
// expressions meta (NFT_META_*) and ct (NFT_CT_*). A missing key is unknown.
type packet struct {
	network, transport field
	meta, ct           map[uint32]field
}

// stateNew is NF_CT_STATE_BIT(IP_CT_NEW), from linux/netfilter/nf_conntrack_common.h.
const stateNew = 1 << 3

// newPacket returns the first packet of a sample's flow on its way to a destination. Its source is
// unknown. Offsets are those of headers without options: RFC 791 section 3.1, RFC 8200 section 3.
func newPacket(s sample, to netip.AddrPort) *packet {
	length, proto, daddr := 20, 9, 16
	etherType, nfproto := uint16(unix.ETH_P_IP), byte(unix.NFPROTO_IPV4)
	if s.family == 1 {
		length, proto, daddr, etherType, nfproto = 40, 6, 24, unix.ETH_P_IPV6, unix.NFPROTO_IPV6
	}
	p := &packet{network: make(field, length), transport: make(field, 20), ct: make(map[uint32]field)}
	p.network.set(proto, []byte{byte(s.proto)})
	p.network.set(daddr, to.Addr().AsSlice())
	p.transport.set(2, binary.BigEndian.AppendUint16(nil, to.Port()))
	p.meta = map[uint32]field{
		unix.NFT_META_NFPROTO: known(nfproto), unix.NFT_META_L4PROTO: known(byte(s.proto)),
		unix.NFT_META_PROTOCOL: known(binary.BigEndian.AppendUint16(nil, etherType)...),
	}
	return p
}

// by sets an interface's name; key is NFT_META_IIFNAME or NFT_META_OIFNAME. An empty name stays
// unknown. The kernel compares names padded with zeros to IFNAMSIZ.
func (p *packet) by(key uint32, iface string) {
	if iface != "" {
		p.meta[key] = known(append([]byte(iface), make([]byte, unix.IFNAMSIZ-len(iface))...)...)
	}
}
