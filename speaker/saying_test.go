package speaker

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

// Whatever a speaker hears, it is either no saying, or one that is said in the same bytes.
func FuzzSaying(f *testing.F) {
	whole := saying{boot: 1, count: 2, released: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, held: []netip.Addr{netip.MustParseAddr("2001:db8::1")}}
	for _, m := range whole.messages() {
		f.Add(m)
		f.Add(m[:len(m)-1])
	}
	f.Add(saying{asks: true, boot: 1}.messages()[0])
	f.Add(saying{wants: true, boot: 1, held: whole.held}.messages()[0])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSaying(b)
		if err != nil {
			return
		}
		var again []byte
		for i, m := range s.messages() {
			if len(m) > maxSaying {
				t.Errorf("%x: a message of %d bytes", b, len(m))
			}
			if i > 0 {
				m = m[17:] // what each begins with
			}
			again = append(again, m...)
		}
		// What is released is said first, in whatever order it was heard.
		if len(again) != len(b) || !bytes.Equal(again[:17], b[:17]) {
			t.Errorf("%x became %x", b, again)
		}
		if back, err := parseSaying(again); err != nil || !equalSaying(back, s) {
			t.Errorf("%+v became %+v, %v", s, back, err)
		}
	})
}

func equalSaying(a, b saying) bool {
	return a.asks == b.asks && a.wants == b.wants && a.boot == b.boot && a.count == b.count && slices.Equal(a.released, b.released) && slices.Equal(a.held, b.held)
}
