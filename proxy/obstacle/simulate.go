package obstacle

import (
	"bytes"
	"encoding/binary"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
)

// This file simulates other programs' rules for a packet that is partly known: its client and
// interface may be any. So each test of a rule has the result yes, no or maybe. An expression
// that the simulation does not know has the result maybe, and may accept: a reported drop is
// certain.

// From linux/netfilter.h.
const (
	nfDrop   = 0
	nfAccept = 1
	nfQueue  = 3
)

// outcomes are the possible results of a chain for a packet.
type outcomes uint8

const (
	mayAccept outcomes = 1 << iota
	mayDrop
	mayFall // the chain returns to its caller, or a base chain to its policy
)

// A hookWalk leads one packet through the chains of one hook.
type hookWalk struct {
	rules  *ruleset
	table  tableID
	packet *knownPacket
	regs   knownBits
	budget int // rules that may still be simulated

	// The chains in which these certainly happen to the packet; empty: they do not. A drop is
	// certain only if mayDrop is the only result.
	dropped, untracked, translated string
}

// walkBudget limits the rules of one simulation: chains that jump to each other repeatedly make
// their number exponential.
const walkBudget = 20_000

// walkHook returns the possible results of a base chain for the packet, mayAccept and mayDrop
// only, and the hookWalk with the chains that caused them.
func walkHook(r *ruleset, base hookedChain, p *knownPacket) (*hookWalk, outcomes) {
	w := &hookWalk{rules: r, table: base.table, packet: p, regs: knownBits{}.at(0, 80), budget: walkBudget}
	out := w.chain(base.name, true, 0)
	if out&mayFall != 0 {
		out &^= mayFall
		if !base.drops {
			return w, out | mayAccept
		}
		if out&mayAccept == 0 {
			w.dropped = base.name
		}
		out |= mayDrop
	}
	return w, out
}

// chain returns the possible results of a chain. sure reports that the packet certainly reaches
// it. The kernel limits the nesting of chains to 16 (NFT_JUMP_STACK_SIZE).
func (w *hookWalk) chain(name string, sure bool, depth int) (out outcomes) {
	rules, ok := w.rules.chain(chainID{w.table, name})
	if !ok || depth > 16 {
		return mayAccept | mayDrop | mayFall
	}
	var returned joinedMark
	for _, expressions := range rules {
		if w.budget--; w.budget < 0 {
			return out | mayAccept | mayDrop | mayFall
		}
		before := w.packet.mark
		r := ruleWalk{hookWalk: w, in: name, match: yes, sure: sure}
		may, ends := r.run(expressions, depth)
		if r.match == no {
			continue
		}
		out |= may
		if may&mayFall != 0 {
			returned.add(w.packet.mark)
		}
		if ends && r.match == yes {
			w.packet.mark = returned.markBits
			return out
		}
		if r.match == maybe {
			w.packet.mark = before.join(w.packet.mark)
		}
		sure = sure && may == 0
	}
	returned.add(w.packet.mark)
	w.packet.mark = returned.markBits
	return out | mayFall
}

// rule returns the possible results of a verdict, and whether the packet leaves the chain by it.
func (w *hookWalk) rule(v *verdict, in string, sure bool, depth int) (may outcomes, ends bool) {
	switch v.code {
	case nfAccept:
		return mayAccept, true
	case nfDrop:
		w.dropped = in
		return mayDrop, true
	case unix.NFT_RETURN:
		return mayFall, true
	case unix.NFT_GOTO:
		return w.chain(v.chain, sure, depth+1), true
	case unix.NFT_JUMP:
		may := w.chain(v.chain, sure, depth+1)
		return may &^ mayFall, may&mayFall == 0
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return 0, false
	}
	return mayAccept | mayDrop, false // NF_QUEUE and others
}

// A ruleWalk leads the packet through one rule.
type ruleWalk struct {
	*hookWalk
	in    string  // the chain
	match ternary // so far
	sure  bool
}

// run evaluates the expressions up to the first that does not match or has a verdict.
func (r *ruleWalk) run(expressions []byte, depth int) (may outcomes, ends bool) {
	for _, expr := range nfnl.Attributes(expressions) {
		name, data := nfnl.CString(nfnl.Attribute(expr, unix.NFTA_EXPR_NAME)), nfnl.Attribute(expr, unix.NFTA_EXPR_DATA)
		if v := r.decide(name, data); v != nil {
			return r.rule(v, r.in, r.sure && r.match == yes, depth)
		}
		r.match = min(r.match, r.test(name, data))
		if r.match == no {
			return 0, false
		}
	}
	return 0, false
}

// unknownVerdict stands for any verdict.
var unknownVerdict = &verdict{code: nfQueue}

// certainly records the chain in what if the rule applies for certain.
func (r *ruleWalk) certainly(what *string) {
	if r.sure && r.match == yes && *what == "" {
		*what = r.in
	}
}

// decide returns the verdict of an expression; nil if the rule continues with the next one. A
// translation accepts the packet in its chain.
func (r *ruleWalk) decide(name string, data []byte) *verdict {
	switch name {
	case "immediate":
		return parseVerdict(nfnl.Attribute(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT))
	case "lookup":
		if nfnl.Attribute(data, unix.NFTA_LOOKUP_DREG) != nil && nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_LOOKUP_DREG)) == unix.NFT_REG_VERDICT {
			return r.vmap(data)
		}
	case "reject":
		return &verdict{code: nfDrop}
	case "nat":
		const dnat = 1 // NFT_NAT_DNAT
		if nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_NAT_TYPE)) == dnat {
			r.certainly(&r.translated)
		}
		return &verdict{code: nfAccept}
	case "redir":
		r.certainly(&r.translated)
		return &verdict{code: nfAccept}
	case "masq":
		return &verdict{code: nfAccept}
	case "notrack":
		r.certainly(&r.untracked)
	case "target":
		return r.target(data)
	case "queue", "tproxy", "synproxy", "fwd":
		return unknownVerdict
	}
	return nil
}

// target returns the verdict of a target of iptables-nft, which runs as expression "target"
// (nft_compat). Targets that are not listed may do anything.
func (r *ruleWalk) target(data []byte) *verdict {
	switch nfnl.CString(nfnl.Attribute(data, unix.NFTA_TARGET_NAME)) {
	case "REJECT":
		return &verdict{code: nfDrop}
	case "NOTRACK":
		r.certainly(&r.untracked)
		return &verdict{code: unix.NFT_CONTINUE}
	case "CT":
		const notrack = 1 // XT_CT_NOTRACK
		if info := nfnl.Attribute(data, unix.NFTA_TARGET_INFO); len(info) >= 2 && binary.NativeEndian.Uint16(info)&notrack != 0 {
			r.certainly(&r.untracked)
		}
		return &verdict{code: unix.NFT_CONTINUE}
	case "DNAT", "REDIRECT":
		r.certainly(&r.translated)
		return &verdict{code: nfAccept}
	case "MARK":
		r.setMark(nfnl.Attribute(data, unix.NFTA_TARGET_INFO))
		return &verdict{code: unix.NFT_CONTINUE}
	case "CONNMARK", "SET": // may change the mark
		r.packet.mark = markBits{}
		return &verdict{code: unix.NFT_CONTINUE}
	case "LOG", "NFLOG", "TCPMSS", "CHECKSUM", "CLASSIFY":
		return &verdict{code: unix.NFT_CONTINUE}
	}
	return unknownVerdict
}

// vmap returns the verdict of a verdict map for the packet. Without an element for it the rule
// does not match.
func (r *ruleWalk) vmap(data []byte) *verdict {
	found, e := r.lookup(data)
	switch {
	case found == no:
		r.match = no
		return &verdict{code: unix.NFT_CONTINUE}
	case found == maybe || e.verdict == nil:
		r.match = min(r.match, maybe)
		return unknownVerdict
	}
	return e.verdict
}

// test evaluates an expression without a verdict: it loads registers, or reports whether the
// rule continues.
func (r *ruleWalk) test(name string, data []byte) ternary {
	switch name {
	case "payload":
		r.payload(data)
	case "meta":
		r.loadMeta(data)
	case "ct":
		r.loadCT(data)
	case "immediate":
		r.load(data, unix.NFTA_IMMEDIATE_DREG, known(nfnl.Attribute(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE)))
	case "bitwise":
		r.bitwise(data)
	case "cmp":
		return r.compare(data)
	case "range":
		return r.between(data)
	case "lookup":
		return r.find(data)
	case "match":
		return r.matchCompat(nfnl.CString(nfnl.Attribute(data, unix.NFTA_MATCH_NAME)), nfnl.Attribute(data, unix.NFTA_MATCH_INFO))
	case "counter", "log", "last", "notrack", "dup", "objref", "dynset", "flow_offload":
	default:
		// An unknown expression may end the rule, or write any value to any register.
		r.regs = knownBits{}.at(0, len(r.regs.value))
		return maybe
	}
	return yes
}

// register returns the offset of a register in bytes, as nft_parse_register does: the old
// registers have 16 bytes, and the new ones of 4 bytes overlap them.
func register(n uint32) int {
	if n <= unix.NFT_REG_4 {
		return int(n) * 16
	}
	return int(n-unix.NFT_REG32_00)*4 + 16
}

// load writes k to the register that attribute t names. The kernel pads registers with zeros to
// four bytes. An empty k makes 16 bytes unknown, since its length is unknown.
func (r *ruleWalk) load(data []byte, t uint16, k knownBits) {
	dreg := nfnl.Attribute(data, t)
	if dreg == nil {
		return // it writes to the packet, not from it
	}
	at := register(nfnl.Uint32(dreg))
	length := max(nfnl.Align(len(k.value)), 4)
	if k.value == nil {
		length = unix.IFNAMSIZ // the longest value of meta and ct
	}
	if at+length > len(r.regs.value) {
		length = len(r.regs.value) - at
	}
	clear(r.regs.value[at : at+length])
	clear(r.regs.known[at : at+length])
	copy(r.regs.value[at:], k.value)
	copy(r.regs.known[at:], k.known)
	for i := len(k.value); k.value != nil && i < length; i++ {
		r.regs.known[at+i] = 0xff
	}
}

// payload loads bytes of a header. Bytes of the link layer are unknown.
func (r *ruleWalk) payload(data []byte) {
	length := int(nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_PAYLOAD_LEN)))
	offset := int(nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_PAYLOAD_OFFSET)))
	var k knownBits
	switch nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_PAYLOAD_BASE)) {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		k = r.packet.network.at(offset, length)
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		k = r.packet.transport.at(offset, length)
	default:
		k = knownBits{}.at(0, length)
	}
	r.load(data, unix.NFTA_PAYLOAD_DREG, k)
}

// loadCT loads what is known of the flow. The addresses of its original direction are not set,
// so rules on them may match.
func (r *ruleWalk) loadCT(data []byte) {
	r.load(data, unix.NFTA_CT_DREG, r.packet.ct[nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_CT_KEY))])
}

// bitwise masks a register, as in "ct state & 0x6". A bit that the mask clears is known then,
// whatever it was. Shifts and other operations have an unknown result.
func (r *ruleWalk) bitwise(data []byte) {
	const op = 6 // NFTA_BITWISE_OP; 0: mask and xor
	length := int(nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_BITWISE_LEN)))
	mask := nfnl.Attribute(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
	xor := nfnl.Attribute(data, unix.NFTA_BITWISE_XOR, unix.NFTA_DATA_VALUE)
	k := r.source(data, unix.NFTA_BITWISE_SREG, length)
	if nfnl.Uint32(nfnl.Attribute(data, op)) != 0 || len(mask) != length || len(xor) != length {
		k = knownBits{}.at(0, length)
	} else {
		for i := range k.value {
			k.value[i] = k.value[i]&mask[i] ^ xor[i]
			k.known[i] |= ^mask[i]
		}
	}
	r.load(data, unix.NFTA_BITWISE_DREG, k)
}

// source copies length bytes from the register that attribute t names.
func (r *ruleWalk) source(data []byte, t uint16, length int) knownBits {
	return r.regs.at(register(nfnl.Uint32(nfnl.Attribute(data, t))), length)
}

// compare compares a register with a constant. Orders need all bits; they compare bytes, as
// memcmp does in the kernel.
func (r *ruleWalk) compare(data []byte) ternary {
	value := nfnl.Attribute(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
	k := r.source(data, unix.NFTA_CMP_SREG, len(value))
	op := nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_CMP_OP))
	switch op {
	case unix.NFT_CMP_EQ:
		return k.is(value)
	case unix.NFT_CMP_NEQ:
		return yes - k.is(value)
	}
	if !k.certain() {
		return maybe
	}
	order := bytes.Compare(k.value, value)
	return ternaryOf(map[uint32]bool{
		unix.NFT_CMP_LT: order < 0, unix.NFT_CMP_LTE: order <= 0,
		unix.NFT_CMP_GT: order > 0, unix.NFT_CMP_GTE: order >= 0,
	}[op])
}

// between reports whether a register is in a range, both ends included.
func (r *ruleWalk) between(data []byte) ternary {
	from := nfnl.Attribute(data, unix.NFTA_RANGE_FROM_DATA, unix.NFTA_DATA_VALUE)
	to := nfnl.Attribute(data, unix.NFTA_RANGE_TO_DATA, unix.NFTA_DATA_VALUE)
	k := r.source(data, unix.NFTA_RANGE_SREG, len(from))
	if !k.certain() {
		return maybe
	}
	in := ternaryOf(bytes.Compare(from, k.value) <= 0 && bytes.Compare(k.value, to) <= 0)
	if nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_RANGE_OP)) == unix.NFT_RANGE_NEQ {
		return yes - in
	}
	return in
}

// find looks a register up in a set, or in a map whose value it loads. The lookup may be
// inverted ("!=" in nft).
func (r *ruleWalk) find(data []byte) ternary {
	found, e := r.lookup(data)
	if nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_LOOKUP_FLAGS))&unix.NFT_LOOKUP_F_INV != 0 {
		found = yes - found
	}
	if found == yes && e.value != "" {
		r.load(data, unix.NFTA_LOOKUP_DREG, known([]byte(e.value)))
	} else {
		r.load(data, unix.NFTA_LOOKUP_DREG, knownBits{})
	}
	return found
}

// lookup reports whether a set contains the register's value, and returns the element if that
// is certain.
func (r *ruleWalk) lookup(data []byte) (ternary, setElement) {
	s := r.rules.set(chainID{r.table, nfnl.CString(nfnl.Attribute(data, unix.NFTA_LOOKUP_SET))})
	if s == nil || !s.fixed {
		return maybe, setElement{}
	}
	if len(s.elements) == 0 {
		return no, setElement{}
	}
	k := r.source(data, unix.NFTA_LOOKUP_SREG, len(s.elements[0].key))
	if s.flags&unix.NFT_SET_INTERVAL != 0 {
		return s.findInterval(k)
	}
	result := no
	for _, e := range s.elements {
		switch k.is([]byte(e.key)) {
		case yes:
			return yes, e
		case maybe:
			result = maybe
		case no:
		}
	}
	return result, setElement{}
}

// findInterval looks a key up among intervals. Each begins at an element, and ends before the
// next one or at its own end, which is inclusive.
func (s *valueSet) findInterval(k knownBits) (ternary, setElement) {
	if !k.certain() {
		return maybe, setElement{}
	}
	key := string(k.value)
	after := sort.Search(len(s.elements), func(i int) bool { return s.elements[i].key > key })
	for i := after - 1; i >= 0; i-- {
		e := s.elements[i]
		if e.end != "" {
			return ternaryOf(key <= e.end), e
		}
		if !e.ends {
			return yes, e
		}
		if i == 0 || s.elements[i-1].key != e.key {
			break // between two intervals
		}
	}
	return no, setElement{}
}
