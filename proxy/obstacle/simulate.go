package obstacle

import (
	"bytes"
	"encoding/binary"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
)

// This file simulates other programs' rules for a packet that is partly known: its client
// and interface may be any. So each test of a rule is true, false or open. What is
// not understood is open, and may accept: a reported drop is certain.

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
	mayFall // it comes back to where the chain was called, or to the policy
)

// A trail leads one packet through the chains of one hook.
type trail struct {
	rules  *ruleset
	table  tableID
	packet *knownPacket
	regs   knownBits
	budget int // of rules, against chains that lead to one another many times

	// What happens for certain, by the name of the chain in which it does.
	dropped, untracked, translated string
}

const walkBudget = 20_000

// walkHook returns the possible results of a hook for the packet.
func walkHook(r *ruleset, base hookedChain, p *knownPacket) (*trail, outcomes) {
	w := &trail{rules: r, table: base.table, packet: p, regs: knownBits{}.at(0, 80), budget: walkBudget}
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

// chain returns the possible results of a chain. sure: the packet gets there for certain.
func (w *trail) chain(name string, sure bool, depth int) (out outcomes) {
	rules, ok := w.rules.chain(chainID{w.table, name})
	if !ok || depth > 16 {
		return mayAccept | mayDrop | mayFall
	}
	for _, expressions := range rules {
		if w.budget--; w.budget < 0 {
			return out | mayAccept | mayDrop | mayFall
		}
		r := ruleWalk{trail: w, in: name, match: yes, sure: sure}
		may, ends := r.run(expressions, depth)
		if r.match == no {
			continue
		}
		out |= may
		if ends && r.match == yes {
			return out
		}
		sure = sure && may == 0
	}
	return out | mayFall
}

// rule returns what a verdict leads to, and whether the rule is the last that the
// packet meets in its chain.
func (w *trail) rule(v *verdict, in string, sure bool, depth int) (may outcomes, ends bool) {
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
	*trail
	in    string // the chain
	match tri    // so far
	sure  bool
}

// run goes through the expressions up to the first that is false or decides.
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

// unknownVerdict is a verdict that could be any.
var unknownVerdict = &verdict{code: nfQueue}

// certainly records the chain in what if the rule applies for certain.
func (r *ruleWalk) certainly(what *string) {
	if r.sure && r.match == yes && *what == "" {
		*what = r.in
	}
}

// decide returns the verdict that an expression has, nil if it has none.
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

// target is one of iptables.
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
	case "LOG", "NFLOG", "MARK", "CONNMARK", "TCPMSS", "CHECKSUM", "CLASSIFY", "SET":
		return &verdict{code: unix.NFT_CONTINUE}
	}
	return unknownVerdict
}

// vmap is the verdict that a map has for the packet.
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

// test says whether an expression lets the rule go on, and does what it does to
// registers.
func (r *ruleWalk) test(name string, data []byte) tri {
	switch name {
	case "payload":
		r.payload(data)
	case "meta":
		r.load(data, unix.NFTA_META_DREG, r.packet.meta[nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_META_KEY))])
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
		if nfnl.CString(nfnl.Attribute(data, unix.NFTA_MATCH_NAME)) != "comment" {
			return maybe
		}
	case "counter", "log", "last", "notrack", "dup", "objref", "dynset", "flow_offload":
	default:
		// It may stop the rule, or write what is not understood into any register.
		r.regs = knownBits{}.at(0, len(r.regs.value))
		return maybe
	}
	return yes
}

// register is where a register begins: nft_parse_register in the kernel.
func register(n uint32) int {
	if n <= unix.NFT_REG_4 {
		return int(n) * 16
	}
	return int(n-unix.NFT_REG32_00)*4 + 16
}

// load puts bytes into the register that attribute t names. Registers are filled up
// with zeros to four bytes.
func (r *ruleWalk) load(data []byte, t uint16, k knownBits) {
	dreg := nfnl.Attribute(data, t)
	if dreg == nil {
		return // it writes to the packet, not from it
	}
	at := register(nfnl.Uint32(dreg))
	length := max(nfnl.Align(len(k.value)), 4)
	if k.value == nil {
		length = unix.IFNAMSIZ // the longest of what is not known
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

// loadCT loads what is known of the flow. Of its first direction's addresses
// nothing is.
func (r *ruleWalk) loadCT(data []byte) {
	r.load(data, unix.NFTA_CT_DREG, r.packet.ct[nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_CT_KEY))])
}

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

func (r *ruleWalk) compare(data []byte) tri {
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
	return triOf(map[uint32]bool{
		unix.NFT_CMP_LT: order < 0, unix.NFT_CMP_LTE: order <= 0,
		unix.NFT_CMP_GT: order > 0, unix.NFT_CMP_GTE: order >= 0,
	}[op])
}

func (r *ruleWalk) between(data []byte) tri {
	from := nfnl.Attribute(data, unix.NFTA_RANGE_FROM_DATA, unix.NFTA_DATA_VALUE)
	to := nfnl.Attribute(data, unix.NFTA_RANGE_TO_DATA, unix.NFTA_DATA_VALUE)
	k := r.source(data, unix.NFTA_RANGE_SREG, len(from))
	if !k.certain() {
		return maybe
	}
	in := triOf(bytes.Compare(from, k.value) <= 0 && bytes.Compare(k.value, to) <= 0)
	if nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_RANGE_OP)) == unix.NFT_RANGE_NEQ {
		return yes - in
	}
	return in
}

// find is a lookup in a set, or in a map of values.
func (r *ruleWalk) find(data []byte) tri {
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

// lookup says whether a set has the packet, and the element if it is certain.
func (r *ruleWalk) lookup(data []byte) (tri, setElement) {
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

// findInterval looks a key up among intervals, which begin at an element and end
// before the next, or at the element's own end.
func (s *valueSet) findInterval(k knownBits) (tri, setElement) {
	if !k.certain() {
		return maybe, setElement{}
	}
	key := string(k.value)
	after := sort.Search(len(s.elements), func(i int) bool { return s.elements[i].key > key })
	for i := after - 1; i >= 0; i-- {
		e := s.elements[i]
		if e.end != "" {
			return triOf(key <= e.end), e
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
