package speaker

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

// Any bytes are either rejected, or encoded to the same bytes again.
func FuzzMessage(f *testing.F) {
	whole := message{
		instance: 1, sequence: 2, released: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		held: []netip.Addr{netip.MustParseAddr("2001:db8::1")},
	}
	for _, m := range whole.encode() {
		f.Add(m)
		f.Add(m[:len(m)-1])
	}
	f.Add(message{kind: queryMessage, instance: 1}.encode()[0])
	f.Add(message{kind: readyMessage, instance: 1, held: whole.held}.encode()[0])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseMessage(b)
		if err != nil {
			return
		}
		var again []byte
		for i, m := range s.encode() {
			if len(m) > maxMessage {
				t.Errorf("%x: a message of %d bytes", b, len(m))
			}
			if i > 0 {
				m = m[17:] // without the header
			}
			again = append(again, m...)
		}
		// Released addresses are encoded first, in whatever order they arrived.
		if len(again) != len(b) || !bytes.Equal(again[:17], b[:17]) {
			t.Errorf("%x became %x", b, again)
		}
		if back, err := parseMessage(again); err != nil || !equalMessages(back, s) {
			t.Errorf("%+v became %+v, %v", s, back, err)
		}
	})
}

func equalMessages(a, b message) bool {
	return a.kind == b.kind && a.instance == b.instance && a.sequence == b.sequence &&
		slices.Equal(a.released, b.released) && slices.Equal(a.held, b.held)
}
