package nfnl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Registers, as the kernel takes them: the verdict's, and the first of sixteen
// that hold 32 bits each (NFT_REG32_00).
const (
	RegisterVerdict = unix.NFT_REG_VERDICT
	RegisterFirst   = unix.NFT_REG32_00
)

// DynsetDelete is NFT_DYNSET_OP_DELETE, which x/sys does not have.
const DynsetDelete = 2

// Expressions builds the expressions of a rule. Most rules are text; these are
// for what nft 1.0.6 can list but not write.
type Expressions struct{ e Encoder }

// Encoded are the expressions as the attribute NFTA_RULE_EXPRESSIONS has them.
func (x *Expressions) Encoded() []byte { return x.e.B }

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

// Meta loads a property of the packet, such as NFT_META_L4PROTO.
func (x *Expressions) Meta(key, register uint32) {
	x.add("meta", func(e *Encoder) {
		e.Uint32(unix.NFTA_META_KEY, key)
		e.Uint32(unix.NFTA_META_DREG, register)
	})
}

// CT loads what conntrack has of the flow's original direction.
func (x *Expressions) CT(key, register uint32) {
	x.add("ct", func(e *Encoder) {
		e.Uint32(unix.NFTA_CT_DREG, register)
		e.Uint32(unix.NFTA_CT_KEY, key)
		e.Bytes(unix.NFTA_CT_DIRECTION, []byte{0})
	})
}

// Payload loads bytes of a header.
func (x *Expressions) Payload(base, offset, length, register uint32) {
	x.add("payload", func(e *Encoder) {
		e.Uint32(unix.NFTA_PAYLOAD_DREG, register)
		e.Uint32(unix.NFTA_PAYLOAD_BASE, base)
		e.Uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.Uint32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

// Is ends the rule where a register is not that byte.
func (x *Expressions) Is(register uint32, b byte) { x.compare(unix.NFT_CMP_EQ, register, []byte{b}) }

// IsNot ends the rule where a register has that value.
func (x *Expressions) IsNot(register uint32, value []byte) {
	x.compare(unix.NFT_CMP_NEQ, register, value)
}

func (x *Expressions) compare(op, register uint32, value []byte) {
	x.add("cmp", func(e *Encoder) {
		e.Uint32(unix.NFTA_CMP_SREG, register)
		e.Uint32(unix.NFTA_CMP_OP, op)
		at := e.Open(unix.NFTA_CMP_DATA)
		e.Bytes(unix.NFTA_DATA_VALUE, value)
		e.Close(at)
	})
}

// Dynset changes a map by key and value in registers.
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

// Verdict ends the rule with one of NFT_GOTO, NFT_JUMP, NFT_RETURN, NF_DROP.
func (x *Expressions) Verdict(code int32, chain string) {
	x.add("immediate", func(e *Encoder) {
		e.Uint32(unix.NFTA_IMMEDIATE_DREG, RegisterVerdict)
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
