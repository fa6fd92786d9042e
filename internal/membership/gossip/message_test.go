package gossip

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestReplayWindow(t *testing.T) {
	var s replayWindow
	for i, tt := range []struct {
		boot, seq uint64
		fresh     bool
	}{
		{7, 1, true}, {7, 1, false}, {7, 3, true}, {7, 2, true}, {7, 2, false}, {7, 100, true}, {7, 37, true}, {7, 37, false},
		{7, 36, false}, // too old
		{9, 1, true},   // another process
		{7, 101, false}, {9, 1, false}, {9, 200, true}, {9, 201, true}, {9, 200, false},
	} {
		if got := s.accept(envelope{processID: tt.boot, seq: tt.seq}); got != tt.fresh {
			t.Errorf("%d: %d/%d is new: %v", i, tt.boot, tt.seq, got)
		}
	}
}

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

// The file has lines of memberlist's log, each below the sender that it shows to be unknown.
func TestUnknownSenderInLog(t *testing.T) {
	text, err := os.ReadFile("testdata/memberlist.log")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		got, ok := unknownSender(lines[i+1])
		if want := strings.TrimPrefix(lines[i], "# "); ok != (want != "none") || ok && got.String() != want {
			t.Errorf("%s: %s, want %s", lines[i+1], got, want)
		}
	}
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
