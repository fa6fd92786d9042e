package bgp

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

// Bytes as they are on the wire, laid out by RFC 5880 section 4.1.
func TestBFDPacket(t *testing.T) {
	want := bfdPacket{state: bfdUp, diagnostic: bfdNeighborSaysDown, poll: true, multiplier: 5, local: 0x01020304,
		remote: 0x0a0b0c0d, bfdIntervals: bfdIntervals{50 * time.Millisecond, time.Second}}
	const wire = "23" + "e0" + "05" + "18" + "01020304" + "0a0b0c0d" + "0000c350" + "000f4240" + "00000000"
	if got := hex.EncodeToString(want.bytes()); got != wire {
		t.Errorf("got  %s\nwant %s", got, wire)
	}
	b, err := hex.DecodeString(wire)
	must(t, err)
	if got, err := parseBFD(b); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	final := bfdPacket{state: bfdAdminDown, final: true, multiplier: 1, local: 1}
	if got, err := parseBFD(append(final.bytes(), "padding"...)); err != nil || got != final {
		t.Errorf("got %+v, %v; want %+v", got, err, final)
	}
}

// What is discarded whatever the session is (RFC 5880 section 6.8.6, RFC 5881 section 5).
func TestBFDDiscards(t *testing.T) {
	good := bfdPacket{
		state: bfdUp, multiplier: 3, local: 7, remote: 9, bfdIntervals: bfdIntervals{time.Second, time.Second},
	}
	for _, c := range []struct {
		want   string
		ttl    int
		change func(b []byte) []byte
	}{
		{"", 255, func(b []byte) []byte { return b }},
		{"TTL 254, want 255: it was forwarded", 254, func(b []byte) []byte { return b }},
		{"TTL 0, want 255: it was forwarded", 0, func(b []byte) []byte { return b }},
		{"0 bytes, want 24 or more", 255, func([]byte) []byte { return nil }},
		{"23 bytes, want 24 or more", 255, func(b []byte) []byte { return b[:23] }},
		{"length field 23, want 24 to 24", 255, func(b []byte) []byte { b[3] = 23; return b }},
		{"length field 25, want 24 to 24", 255, func(b []byte) []byte { b[3] = 25; return b }},
		{"version 0, want 1", 255, func(b []byte) []byte { b[0] = 0; return b }},
		{"version 2, want 1", 255, func(b []byte) []byte { b[0] = 2 << 5; return b }},
		{"authenticated, but this node has no BFD authentication", 255, func(b []byte) []byte { b[1] |= 4; return b }},
		{"multipoint bit is set, want 0", 255, func(b []byte) []byte { b[1] |= 1; return b }},
		{"detection multiplier 0, want 1 or more", 255, func(b []byte) []byte { b[2] = 0; return b }},
		{"my discriminator 0, want another value", 255, func(b []byte) []byte { b[7] = 0; return b }},
		{"your discriminator 0 in state Up, want Down or AdminDown", 255,
			func(b []byte) []byte { b[11] = 0; return b }},
		{"your discriminator 0 in state Init, want Down or AdminDown", 255,
			func(b []byte) []byte { b[1], b[11] = 0x80, 0; return b }},
		{"", 255, func(b []byte) []byte { b[1], b[11] = 0x40, 0; return b }},
		{"", 255, func(b []byte) []byte { b[1], b[11] = 0, 0; return b }},
	} {
		got := ""
		if _, err := acceptBFD(c.ttl, c.change(good.bytes())); err != nil {
			got = strings.TrimPrefix(err.Error(), "BFD packet: ")
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// No packet makes a machine panic, wait for a negative time, or send what cannot be read.
func FuzzBFD(f *testing.F) {
	m := newBFDMachine(fastBFD, 1)
	f.Add(m.packet(false).bytes())
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := parseBFD(body)
		if err != nil {
			return
		}
		if again, err := parseBFD(p.bytes()); err != nil || again != p {
			t.Errorf("%+v becomes %+v, %v", p, again, err)
		}
		m := newBFDMachine(fastBFD, 1)
		p.remote = m.local
		m, r := m.receive(bfdStart, p)
		if r.next.Before(bfdStart) && !r.next.IsZero() || m.detection() <= 0 {
			t.Errorf("next %s, detection %s", r.next, m.detection())
		}
		for _, sent := range r.send {
			if got, err := parseBFD(sent.bytes()); err != nil || got != sent {
				t.Errorf("%+v: %v", sent, err)
			}
		}
	})
}
