package obstacle

import (
	"encoding/binary"
	"testing"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// The match mark, which versions of iptables-nft before 1.8.9 write.
func TestMatchMark(t *testing.T) {
	for _, tt := range []struct {
		mark        markBits
		value, mask uint32
		invert      byte
		want        ternary
	}{
		{markBits{0x10000, 0x30000}, 0x10000, 0x10000, 0, yes},
		{markBits{0x10000, 0x30000}, 0x10000, 0x10000, 1, no},
		{markBits{0x10000, 0x30000}, 0x20000, 0x20000, 0, no},
		{markBits{0x10000, 0x10000}, 0x20000, 0x20000, 0, maybe},
		{markBits{0x10000, 0x10000}, 0x0, 0x30000, 0, no},
		{markBits{0x10000, 0x10000}, 0x10000, 0x30000, 1, maybe},
		{markBits{0x10000, 0x10000}, 0x20000, 0x10000, 0, no}, // bits outside of the mask
	} {
		p := newPacket(0, state.TCP)
		p.mark = tt.mark
		r := ruleWalk{hookWalk: &hookWalk{packet: p}}
		info := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, tt.value), tt.mask)
		if got := r.matchCompat("mark", append(info, tt.invert, 0, 0, 0)); got != tt.want {
			t.Errorf("mark %+v, match %#x/%#x, inverted %d: %d, want %d", tt.mark, tt.value, tt.mask, tt.invert, got, tt.want)
		}
	}
}
