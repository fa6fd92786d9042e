package proxy

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Registers, as the kernel takes them: the verdict's, and the first of sixteen
// that hold 32 bits each (NFT_REG32_00).
const (
	registerVerdict = unix.NFT_REG_VERDICT
	registerFirst   = unix.NFT_REG32_00
)

// dynsetDelete is NFT_DYNSET_OP_DELETE, which x/sys does not have.
const dynsetDelete = 2

// expressions builds the expressions of a rule. Most rules are text; these are
// for what nft 1.0.6 can list but not write.
type expressions struct{ e encoder }

func (x *expressions) add(name string, data func(e *encoder)) {
	at := x.e.open(unix.NFTA_LIST_ELEM)
	x.e.string(unix.NFTA_EXPR_NAME, name)
	if data != nil {
		d := x.e.open(unix.NFTA_EXPR_DATA)
		data(&x.e)
		x.e.shut(d)
	}
	x.e.shut(at)
}

func (x *expressions) meta(key, register uint32) {
	x.add("meta", func(e *encoder) {
		e.uint32(unix.NFTA_META_KEY, key)
		e.uint32(unix.NFTA_META_DREG, register)
	})
}

// ct loads what conntrack has of the flow's original direction.
func (x *expressions) ct(key, register uint32) {
	x.add("ct", func(e *encoder) {
		e.uint32(unix.NFTA_CT_DREG, register)
		e.uint32(unix.NFTA_CT_KEY, key)
		e.bytes(unix.NFTA_CT_DIRECTION, []byte{0})
	})
}

func (x *expressions) payload(base, offset, length, register uint32) {
	x.add("payload", func(e *encoder) {
		e.uint32(unix.NFTA_PAYLOAD_DREG, register)
		e.uint32(unix.NFTA_PAYLOAD_BASE, base)
		e.uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.uint32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

// is ends the rule where a register is not that byte.
func (x *expressions) is(register uint32, b byte) { x.compare(unix.NFT_CMP_EQ, register, []byte{b}) }

// isNot ends the rule where a register has that value.
func (x *expressions) isNot(register uint32, value []byte) {
	x.compare(unix.NFT_CMP_NEQ, register, value)
}

func (x *expressions) compare(op, register uint32, value []byte) {
	x.add("cmp", func(e *encoder) {
		e.uint32(unix.NFTA_CMP_SREG, register)
		e.uint32(unix.NFTA_CMP_OP, op)
		at := e.open(unix.NFTA_CMP_DATA)
		e.bytes(unix.NFTA_DATA_VALUE, value)
		e.shut(at)
	})
}

// dynset changes a map by key and value in registers.
func (x *expressions) dynset(set string, op, key, value uint32, timeoutMS uint64) {
	x.add("dynset", func(e *encoder) {
		e.string(unix.NFTA_DYNSET_SET_NAME, set)
		e.uint32(unix.NFTA_DYNSET_OP, op)
		e.uint32(unix.NFTA_DYNSET_SREG_KEY, key)
		e.uint32(unix.NFTA_DYNSET_SREG_DATA, value)
		if timeoutMS > 0 {
			e.bytes(unix.NFTA_DYNSET_TIMEOUT, binary.BigEndian.AppendUint64(nil, timeoutMS))
		}
	})
}

func (x *expressions) counter() { x.add("counter", nil) }

// verdict ends the rule with one of NFT_GOTO, NFT_JUMP, NFT_RETURN, NF_DROP.
func (x *expressions) verdict(code int32, chain string) {
	x.add("immediate", func(e *encoder) {
		e.uint32(unix.NFTA_IMMEDIATE_DREG, registerVerdict)
		data := e.open(unix.NFTA_IMMEDIATE_DATA)
		verdict := e.open(unix.NFTA_DATA_VERDICT)
		e.uint32(unix.NFTA_VERDICT_CODE, uint32(code))
		if chain != "" {
			e.string(unix.NFTA_VERDICT_CHAIN, chain)
		}
		e.shut(verdict)
		e.shut(data)
	})
}
