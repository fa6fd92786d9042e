package obstacle

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
)

// markBits are what is known of a packet's mark: known has a 1 for each known bit, and value is 0
// where known is. Some network plug-ins, such as Calico, keep the verdict of a policy in the mark:
// without it, no drop by a policy would be certain.
type markBits struct{ value, known uint32 }

// set returns the mark after --set-xmark value/mask: the bits of the mask are cleared, then the
// mark is XORed with the value.
func (m markBits) set(value, mask uint32) markBits {
	known := m.known | mask
	return markBits{(m.value&^mask ^ value) & known, known}
}

// is reports whether the bits of a mask have a value.
func (m markBits) is(value, mask uint32) ternary {
	switch {
	case value&^mask != 0, (m.value^value)&mask&m.known != 0:
		return no
	case mask&^m.known != 0:
		return maybe
	}
	return yes
}

// join returns what is known of a packet that has one of two marks.
func (m markBits) join(o markBits) markBits {
	known := m.known & o.known &^ (m.value ^ o.value)
	return markBits{m.value & known, known}
}

// A joinedMark is that of the packets which return from a chain, from any of its rules.
type joinedMark struct {
	markBits
	any bool // a packet may return
}

func (j *joinedMark) add(m markBits) {
	if j.any {
		m = m.join(j.markBits)
	}
	j.markBits, j.any = m, true
}

// bits returns the mark as a register of nftables holds it, in the byte order of the host.
func (m markBits) bits() knownBits {
	return knownBits{binary.NativeEndian.AppendUint32(nil, m.value), binary.NativeEndian.AppendUint32(nil, m.known)}
}

// loadMeta loads a value of the packet, or sets its mark from a register.
func (r *ruleWalk) loadMeta(data []byte) {
	key := nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_META_KEY))
	switch {
	case key != unix.NFT_META_MARK:
		r.load(data, unix.NFTA_META_DREG, r.packet.meta[key])
	case nfnl.Attribute(data, unix.NFTA_META_SREG) != nil:
		k := r.source(data, unix.NFTA_META_SREG, 4)
		known := binary.NativeEndian.Uint32(k.known)
		r.packet.mark = markBits{binary.NativeEndian.Uint32(k.value) & known, known}
	default:
		r.load(data, unix.NFTA_META_DREG, r.packet.mark.bits())
	}
}

// setMark does what a rule's target MARK does, in the words of iptables-save.
func (p *legacyPacket) setMark(words []string) {
	at := slices.Index(words, "--set-xmark")
	if at < 0 || at+1 == len(words) {
		p.mark = markBits{}
		return
	}
	value, mask, ok := parseMark(words[at+1])
	if p.mark = p.mark.set(value, mask); !ok {
		p.mark = markBits{}
	}
}

// hasMark reports whether the mark is one in the form of iptables-save, "0x10000/0x10000".
func (p legacyPacket) hasMark(text string) ternary {
	value, mask, ok := parseMark(text)
	if !ok {
		return maybe
	}
	return p.mark.is(value, mask)
}

// parseMark reads a mark with an optional mask.
func parseMark(text string) (value, mask uint32, ok bool) {
	v, m, masked := strings.Cut(text, "/")
	a, err1 := strconv.ParseUint(v, 0, 32)
	if !masked {
		return uint32(a), math.MaxUint32, err1 == nil
	}
	b, err2 := strconv.ParseUint(m, 0, 32)
	return uint32(a), uint32(b), err1 == nil && err2 == nil
}
