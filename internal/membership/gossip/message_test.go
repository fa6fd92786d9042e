package gossip

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestMessageSize(t *testing.T) {
	if err := checkSize("n1", make([]byte, MaxMessage)); err != nil {
		t.Error(err)
	}
	if checkSize("n1", make([]byte, MaxMessage+1)) == nil || checkSize(strings.Repeat("n", 256), nil) == nil {
		t.Error("a message or name that is too long is accepted")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(envelope{Message{"n1", []byte("released")}, kindBroadcast, 1, 2}.bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parse(b)
		if err != nil {
			return
		}
		if !bytes.Equal(e.bytes(), b) {
			t.Errorf("%x became %x", b, e.bytes())
		}
	})
}

// All nodes together try to reach a lost node about twenty times a second.
func TestJoinInterval(t *testing.T) {
	for _, tt := range []struct {
		known bool
		away  time.Duration
		alive int
		want  time.Duration
	}{
		{true, 0, 1, 50 * time.Millisecond},
		{true, time.Minute, 2, 100 * time.Millisecond},
		{true, time.Minute, 100, 5 * time.Second},
		{true, time.Hour, 2, 2 * time.Second},
		{false, 0, 0, 500 * time.Millisecond},
		{false, 0, 1, 500 * time.Millisecond},
		{false, 0, 10, 50 * time.Second},
	} {
		if got := joinInterval(tt.known, tt.away, tt.alive); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

func TestProblems(t *testing.T) {
	p, now := problems{}, time.Now()
	p.set("key", now, errNoKey)
	for i := range 100 {
		p.set("sender "+strings.Repeat("x", i), now, errMessage)
	}
	if got := p.list(now); len(got) != maxProblems {
		t.Errorf("%d problems", len(got))
	}
	if got := p.list(now.Add(time.Hour)); len(got) != 1 || got[0] != errNoKey.Error() {
		t.Errorf("an hour later: %v", got)
	}
	p.set("key", now, nil)
	if got := p.list(now); len(got) != 0 {
		t.Errorf("corrected: %v", got)
	}
}
