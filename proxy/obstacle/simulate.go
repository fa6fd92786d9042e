package obstacle

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
)

// This file simulates other programs' rules for a packet that is partly known: its client and
// interface may be any. So each test of a rule has the result yes, no or maybe. An expression
// that the simulation does not know has the result maybe, and may accept: a reported drop is
// certain. Packet marks are unknown.

// Verdicts, from linux/netfilter.h. The last one is the end of a packet that conntrack ignores, and
// that Fanfare cannot translate.
const (
	nfDrop   = 0
	nfAccept = 1
	nfQueue  = 3
	untracks = 100
)

// outcomes are the possible results of a chain for a packet.
type outcomes uint8

const (
	mayAccept outcomes = 1 << iota
	mayFall            // the chain returns to its caller, or a base chain to its policy
	mayDrop
	mayUntrack
	mayAny = mayAccept | mayFall | mayDrop
)

// A walk leads one packet through a base chain.
type walk struct {
	rules  *ruleset
	base   hookedChain
	packet *packet
	regs   field
	budget int    // rules that may still be simulated
	by     string // the chain whose rule made the packet fail last
}

// walkBudget limits the rules of one simulation: chains that jump to each other repeatedly make
// their number exponential.
const walkBudget = 20_000

// walkHook returns the possible results of a base chain for the packet, and the chain that
// caused a failure.
func walkHook(r *ruleset, base hookedChain, p *packet) (out outcomes, by string) {
	w := &walk{rules: r, base: base, packet: p, regs: make(field, 80), budget: walkBudget}
	out = w.chain(base.name, 0)
	switch {
	case out&mayFall == 0:
		return out, w.by
	case base.drops:
		return out&^mayFall | mayDrop, base.name
	}
	return mayAccept, ""
}

// chain returns the possible results of a chain. The kernel limits the nesting of chains to 16
// (NFT_JUMP_STACK_SIZE).
func (w *walk) chain(name string, depth int) (out outcomes) {
	rules, ok := w.rules.chain(chainID{w.base.table, name})
	if !ok || depth > 16 {
		return mayAny
	}
	for _, expressions := range rules {
		if w.budget--; w.budget < 0 {
			return mayAny
		}
		v, match := w.rule(expressions)
		if v == nil || match == no {
			continue
		}
		may, ends := w.follow(v, name, depth)
		out |= may
		if ends && match == yes {
			return out
		}
	}
	return out | mayFall
}

// follow returns the possible results of a verdict, and whether the packet leaves the chain by it.
func (w *walk) follow(v *verdict, in string, depth int) (may outcomes, ends bool) {
	switch v.code {
	case nfDrop:
		w.by = in
		return mayDrop, true
	case untracks:
		w.by = in
		return mayUntrack, true
	case nfAccept:
		return mayAccept, true
	case unix.NFT_RETURN:
		return mayFall, true
	case unix.NFT_GOTO:
		return w.chain(v.chain, depth+1), true
	case unix.NFT_JUMP:
		may := w.chain(v.chain, depth+1)
		return may &^ mayFall, may&mayFall == 0
	}
	return mayAccept | mayDrop, false // NF_QUEUE and others
}

// rule evaluates expressions up to the first that does not match or has a verdict.
func (w *walk) rule(expressions []byte) (v *verdict, match ternary) {
	match = yes
	for _, expr := range nfnl.Attributes(expressions) {
		name, data := nfnl.CString(nfnl.Attribute(expr, unix.NFTA_EXPR_NAME)), nfnl.Attribute(expr, unix.NFTA_EXPR_DATA)
		if v = w.decide(name, data); v != nil {
			return v, match
		}
		is, v := w.test(name, data)
		if match = min(match, is); match == no || v != nil {
			return v, match
		}
	}
	return nil, match
}

// unknownVerdict stands for any verdict.
var unknownVerdict = &verdict{code: nfQueue}

// decide returns the verdict of an expression; nil if the rule continues with the next one. A
// translation accepts the packet in its chain. notrack has an effect only before conntrack.
func (w *walk) decide(name string, data []byte) *verdict {
	switch name {
	case "immediate":
		return parseVerdict(nfnl.Attribute(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT))
	case "reject":
		return &verdict{code: nfDrop}
	case "nat", "redir", "masq":
		return &verdict{code: nfAccept}
	case "notrack":
		if w.base.priority < priorityConntrack {
			return &verdict{code: untracks}
		}
	case "target": // of iptables-nft (nft_compat)
		const notrack = 1 // XT_CT_NOTRACK
		info := append(nfnl.Attribute(data, unix.NFTA_TARGET_INFO), 0, 0)
		switch target := nfnl.CString(nfnl.Attribute(data, unix.NFTA_TARGET_NAME)); {
		case target == "REJECT":
			return &verdict{code: nfDrop}
		case target == "NOTRACK", target == "CT" && binary.NativeEndian.Uint16(info)&notrack != 0:
			return w.decide("notrack", nil)
		case !goesOn.MatchString(target):
			return unknownVerdict
		}
	case "queue", "tproxy", "synproxy", "fwd":
		return unknownVerdict
	}
	return nil
}

// test evaluates an expression that decide does not know: it loads registers, or reports whether the
// rule continues. Only a verdict map has a verdict.
func (w *walk) test(name string, data []byte) (ternary, *verdict) {
	switch name {
	case "payload":
		w.load(data, unix.NFTA_PAYLOAD_DREG, w.payload(data))
	case "meta":
		w.load(data, unix.NFTA_META_DREG, w.packet.meta[nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_META_KEY))])
	case "ct": // the addresses of the original direction are not set, so that rules on them may match
		w.load(data, unix.NFTA_CT_DREG, w.packet.ct[nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_CT_KEY))])
	case "immediate":
		w.load(data, unix.NFTA_IMMEDIATE_DREG,
			known(nfnl.Attribute(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE)...))
	case "bitwise":
		w.bitwise(data)
	case "cmp":
		return w.compare(data), nil
	case "range":
		return maybe, nil
	case "lookup":
		return w.lookup(data)
	case "match":
		return w.matchCompat(nfnl.CString(nfnl.Attribute(data, unix.NFTA_MATCH_NAME)),
			nfnl.Attribute(data, unix.NFTA_MATCH_INFO)), nil
	case "counter", "log", "last", "notrack", "target", "dup", "objref", "dynset", "flow_offload":
	default: // it may end the rule, or write any value to any register
		clear(w.regs)
		return maybe, nil
	}
	return yes, nil
}

// register returns the offset of a register in bytes, as nft_parse_register does: the old
// registers have 16 bytes, and the new ones of 4 bytes overlap them.
func register(n uint32) int {
	if n <= unix.NFT_REG_4 {
		return int(n) * 16
	}
	return int(n-unix.NFT_REG32_00)*4 + 16
}

// load writes a field to the register that attribute t names. The kernel pads registers with zeros
// to four bytes. Without a register the expression writes to the packet. An empty field is unknown.
func (w *walk) load(data []byte, t uint16, f field) {
	dreg := nfnl.Attribute(data, t)
	if dreg == nil {
		return
	}
	if len(f) == 0 {
		f = make(field, unix.IFNAMSIZ) // the longest value of meta and ct
	}
	to := w.regs[min(register(nfnl.Uint32(dreg)), len(w.regs)):]
	n := copy(to, f)
	to.set(n, make([]byte, min(nfnl.Align(n), len(to))-n))
}

// source copies length bytes from the register that attribute t names.
func (w *walk) source(data []byte, t uint16, length int) field {
	return w.regs.at(register(nfnl.Uint32(nfnl.Attribute(data, t))), length)
}

// payload returns bytes of a header. Those of the link layer are unknown.
func (w *walk) payload(data []byte) field {
	number := func(t uint16) int { return int(nfnl.Uint32(nfnl.Attribute(data, t))) }
	header := map[int]field{
		unix.NFT_PAYLOAD_NETWORK_HEADER: w.packet.network, unix.NFT_PAYLOAD_TRANSPORT_HEADER: w.packet.transport,
	}
	return header[number(unix.NFTA_PAYLOAD_BASE)].at(number(unix.NFTA_PAYLOAD_OFFSET), number(unix.NFTA_PAYLOAD_LEN))
}

// bitwise masks a register, as in "ct state & 0x6". A byte that the mask clears is known then,
// whatever it was. Shifts and other operations have an unknown result.
func (w *walk) bitwise(data []byte) {
	const op = 6 // NFTA_BITWISE_OP; 0: mask and xor
	mask := nfnl.Attribute(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
	xor := nfnl.Attribute(data, unix.NFTA_BITWISE_XOR, unix.NFTA_DATA_VALUE)
	f := make(field, nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_BITWISE_LEN)))
	if nfnl.Uint32(nfnl.Attribute(data, op)) == 0 && len(mask) == len(f) && len(xor) == len(f) {
		f = w.source(data, unix.NFTA_BITWISE_SREG, len(f))
		for i := range f {
			f[i].value, f[i].known = f[i].value&mask[i]^xor[i], f[i].known || mask[i] == 0
		}
	}
	w.load(data, unix.NFTA_BITWISE_DREG, f)
}

// compare compares a register with a constant. An order may hold.
func (w *walk) compare(data []byte) ternary {
	value := nfnl.Attribute(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
	is := w.source(data, unix.NFTA_CMP_SREG, len(value)).is(value)
	switch nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_CMP_OP)) {
	case unix.NFT_CMP_EQ:
		return is
	case unix.NFT_CMP_NEQ:
		return yes - is
	}
	return maybe
}

// lookup looks a register up in a set, a map or a verdict map. A map loads its value. Of a set, the
// result may be inverted ("!=" in nft).
func (w *walk) lookup(data []byte) (found ternary, v *verdict) {
	id := chainID{w.base.table, nfnl.CString(nfnl.Attribute(data, unix.NFTA_LOOKUP_SET))}
	found = maybe
	var element []byte
	if length := w.rules.keyLength(id); length > 0 {
		if key, ok := w.source(data, unix.NFTA_LOOKUP_SREG, length).bytes(); ok {
			found, element = w.rules.element(id, key)
		}
	}
	if dreg := nfnl.Attribute(data, unix.NFTA_LOOKUP_DREG); dreg != nil && nfnl.Uint32(dreg) == unix.NFT_REG_VERDICT {
		if v = parseVerdict(nfnl.Attribute(element, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT)); v == nil {
			v = unknownVerdict
		}
		return found, v
	}
	w.load(data, unix.NFTA_LOOKUP_DREG, known(nfnl.Attribute(element, unix.NFTA_SET_ELEM_DATA,
		unix.NFTA_DATA_VALUE)...))
	if nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_LOOKUP_FLAGS))&unix.NFT_LOOKUP_F_INV != 0 {
		found = yes - found
	}
	return found, nil
}

// matchCompat evaluates a match of iptables-nft that has no expression of nftables (nft_compat):
// comment, or conntrack of revision 3 (struct xt_conntrack_mtinfo3) if it is for states only.
func (w *walk) matchCompat(name string, info []byte) ternary {
	const flagsAt, state, snat, dnat = 146, 1 << 0, 1 << 6, 1 << 7 // from linux/netfilter/xt_conntrack.h
	if name == "comment" {
		return yes
	}
	if name != "conntrack" || len(info) < flagsAt+6 || w.packet.ct[unix.NFT_CT_STATE] == nil {
		return maybe
	}
	word := func(i int) uint16 { return binary.NativeEndian.Uint16(info[flagsAt+2*i:]) }
	if flags, states := word(0), word(2); flags == state && states&(snat|dnat) == 0 {
		return ternaryOf((states&stateNew != 0) == (word(1)&state == 0))
	}
	return maybe
}
