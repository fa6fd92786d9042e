package obstacle

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// iptables-nft writes some matches and targets as expressions of nftables, and the others as the
// structs of xtables (nft_compat), in the byte order of the host. This file reads the latter.
// Which they are depends on the version of iptables-nft.

// matchCompat evaluates a match of xtables.
func (r *ruleWalk) matchCompat(name string, info []byte) ternary {
	switch name {
	case "comment":
		return yes
	case "mark":
		return r.matchMark(info)
	case "conntrack":
		return r.matchConntrack(info)
	}
	return maybe
}

// matchMark evaluates the match mark of revision 1: struct xt_mark_mtinfo1.
func (r *ruleWalk) matchMark(info []byte) ternary {
	if len(info) < 9 {
		return maybe
	}
	is := r.packet.mark.is(binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:]))
	if info[8] != 0 { // inverted
		is = yes - is
	}
	return is
}

// From linux/netfilter/xt_conntrack.h. The bits of other states are those of stateNew.
const (
	conntrackState   = 1 << 0 // XT_CONNTRACK_STATE, a flag of what is matched
	conntrackSrcNAT  = 1 << 6 // XT_CONNTRACK_STATE_SNAT
	conntrackDstNAT  = 1 << 7 // XT_CONNTRACK_STATE_DNAT
	conntrackFlagsAt = 146    // the offset of match_flags in struct xt_conntrack_mtinfo3
)

// matchConntrack evaluates the match conntrack of revision 3 if it is for states only.
func (r *ruleWalk) matchConntrack(info []byte) ternary {
	state, tracked := r.packet.ct[unix.NFT_CT_STATE]
	if len(info) < conntrackFlagsAt+6 || !tracked {
		return maybe
	}
	word := func(i int) uint16 { return binary.NativeEndian.Uint16(info[conntrackFlagsAt+2*i:]) }
	flags, inverted, mask := word(0), word(1), uint32(word(2))
	if flags != conntrackState {
		return maybe
	}
	has := binary.NativeEndian.Uint32(state.value)
	if _, rewritten := r.packet.ct[unix.NFT_CT_STATUS]; rewritten {
		has |= conntrackDstNAT
	}
	is := ternaryOf(has&mask != 0)
	if is == no && mask&conntrackSrcNAT != 0 { // the source may be replaced
		is = maybe
	}
	if inverted&conntrackState != 0 {
		is = yes - is
	}
	return is
}

// setMark does what the target MARK of revision 2 does: struct xt_mark_tginfo2.
func (r *ruleWalk) setMark(info []byte) {
	if len(info) < 8 {
		r.packet.mark = markBits{}
		return
	}
	r.packet.mark = r.packet.mark.set(binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:]))
}
