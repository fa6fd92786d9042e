package gossip

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestSeen(t *testing.T) {
	var s seen
	for i, tt := range []struct {
		boot, seq uint64
		news      bool
	}{
		{7, 1, true}, {7, 1, false}, {7, 3, true}, {7, 2, true}, {7, 2, false}, {7, 100, true}, {7, 37, true}, {7, 37, false},
		{7, 36, false}, // too old to tell
		{9, 1, true},   // another process
		{7, 101, false}, {9, 1, false}, {9, 200, true}, {9, 201, true}, {9, 200, false},
	} {
		if got := s.first(envelope{boot: tt.boot, seq: tt.seq}); got != tt.news {
			t.Errorf("%d: %d/%d is news: %v", i, tt.boot, tt.seq, got)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := check("n1", make([]byte, MaxMessage)); err != nil {
		t.Error(err)
	}
	if check("n1", make([]byte, MaxMessage+1)) == nil || check(strings.Repeat("n", 256), nil) == nil {
		t.Error("too much is let through")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(envelope{Message{"n1", []byte("released")}, word, 1, 2}.bytes())
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

func TestStrangerIn(t *testing.T) {
	for line, want := range map[string]string{
		"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=10.0.0.9:7946":                  "10.0.0.9",
		"[ERR] memberlist: Decrypt packet failed: unsupported encryption version 60 from=[fd00::9]:7946":                           "fd00::9",
		"[ERR] memberlist: failed to receive: no installed keys could decrypt the message from=10.0.0.9:41000":                     "10.0.0.9",
		"[ERR] memberlist: failed to receive: encryption is configured but remote state is not encrypted from=[::ffff:10.0.0.9]:1": "10.0.0.9",
		"[ERR] memberlist: failed to receive: EOF from=10.0.0.9:41000":                                                             "invalid IP",
		"[DEBUG] memberlist: Stream connection from=10.0.0.9:41000":                                                                "invalid IP",
		"[ERR] memberlist: Decrypt packet failed: no from=nowhere":                                                                 "invalid IP",
	} {
		if got, _ := strangerIn(line); got.String() != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	if _, ok := strangerIn("x"); ok {
		t.Error("x names a stranger")
	}
}

// All together try a lost node about twenty times a second, however many they are.
func TestTries(t *testing.T) {
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
		if got := tries(tt.known, tt.away, tt.alive); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

func TestProblems(t *testing.T) {
	p, now := problems{}, time.Now()
	p.set("key", now, errNoKey)
	for i := range 100 {
		p.set("stranger "+strings.Repeat("x", i), now, errMessage)
	}
	if got := p.list(now); len(got) != maxProblems {
		t.Errorf("%d problems", len(got))
	}
	if got := p.list(now.Add(time.Hour)); len(got) != 1 || got[0] != errNoKey.Error() {
		t.Errorf("an hour later: %v", got)
	}
	p.set("key", now, nil)
	if got := p.list(now); len(got) != 0 {
		t.Errorf("mended: %v", got)
	}
}
