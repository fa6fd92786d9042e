package nfnl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// RegisterFirst is the first of nftables' sixteen data registers of 32 bits each. Longer values
// occupy the following registers too: an IPv6 address takes four.
const RegisterFirst = unix.NFT_REG32_00

// DynsetDelete is NFT_DYNSET_OP_DELETE, which x/sys lacks: Dynset deletes the element of the key.
const DynsetDelete = 2

// Expressions builds the expressions of a rule. Most rules are text for nft; this is for
// expressions that nft 1.0.6 can list but not parse.
type Expressions struct{ e Encoder }

// Encoded returns the payload of the attribute NFTA_RULE_EXPRESSIONS.
func (x *Expressions) Encoded() []byte { return x.e.B }

// add appends an expression; data appends its attributes, and is nil for none.
func (x *Expressions) add(name string, data func(e *Encoder)) {
	at := x.e.Open(unix.NFTA_LIST_ELEM)
	x.e.Text(unix.NFTA_EXPR_NAME, name)
	if data != nil {
		d := x.e.Open(unix.NFTA_EXPR_DATA)
		data(&x.e)
		x.e.Close(d)
	}
	x.e.Close(at)
}

// Meta loads metadata of the packet, such as NFT_META_L4PROTO, into a register.
func (x *Expressions) Meta(key, register uint32) {
	x.add("meta", func(e *Encoder) {
		e.Uint32(unix.NFTA_META_KEY, key)
		e.Uint32(unix.NFTA_META_DREG, register)
	})
}

// Payload loads bytes of a header; base is the header, such as NFT_PAYLOAD_NETWORK_HEADER. Offset
// and length are in bytes. If the packet is too short, the kernel ends the rule.
func (x *Expressions) Payload(base, offset, length, register uint32) {
	x.add("payload", func(e *Encoder) {
		e.Uint32(unix.NFTA_PAYLOAD_DREG, register)
		e.Uint32(unix.NFTA_PAYLOAD_BASE, base)
		e.Uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.Uint32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

// Is continues the rule only if a register has this value.
func (x *Expressions) Is(register uint32, value []byte) {
	x.add("cmp", func(e *Encoder) {
		e.Uint32(unix.NFTA_CMP_SREG, register)
		e.Uint32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		at := e.Open(unix.NFTA_CMP_DATA)
		e.Bytes(unix.NFTA_DATA_VALUE, value)
		e.Close(at)
	})
}

// Dynset updates a map by the key and value in two registers, when a packet meets the rule. op is
// NFT_DYNSET_OP_ADD, NFT_DYNSET_OP_UPDATE or DynsetDelete. A timeout of 0 is the map's default.
func (x *Expressions) Dynset(set string, op, key, value uint32, timeoutMS uint64) {
	x.add("dynset", func(e *Encoder) {
		e.Text(unix.NFTA_DYNSET_SET_NAME, set)
		e.Uint32(unix.NFTA_DYNSET_OP, op)
		e.Uint32(unix.NFTA_DYNSET_SREG_KEY, key)
		e.Uint32(unix.NFTA_DYNSET_SREG_DATA, value)
		if timeoutMS > 0 {
			e.Bytes(unix.NFTA_DYNSET_TIMEOUT, binary.BigEndian.AppendUint64(nil, timeoutMS))
		}
	})
}

// Counter counts packets and bytes.
func (x *Expressions) Counter() { x.add("counter", nil) }

// Verdict ends the rule with NFT_GOTO, NFT_JUMP, NFT_RETURN or NF_DROP; chain is the target
// of the first two.
func (x *Expressions) Verdict(code int32, chain string) {
	x.add("immediate", func(e *Encoder) {
		e.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		data := e.Open(unix.NFTA_IMMEDIATE_DATA)
		verdict := e.Open(unix.NFTA_DATA_VERDICT)
		e.Uint32(unix.NFTA_VERDICT_CODE, uint32(code))
		if chain != "" {
			e.Text(unix.NFTA_VERDICT_CHAIN, chain)
		}
		e.Close(verdict)
		e.Close(data)
	})
}
