package measure

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestQuantile(t *testing.T) {
	ms := func(all ...int) (s Sample) {
		for _, n := range all {
			s = append(s, time.Duration(n)*time.Millisecond)
		}
		return s
	}
	for _, tt := range []struct {
		of   Sample
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{ms(7), 0.5, 7 * time.Millisecond},
		{ms(7), 0.95, 7 * time.Millisecond},
		{ms(3, 1, 2), 0.5, 2 * time.Millisecond},
		{ms(4, 3, 1, 2), 0.5, 2 * time.Millisecond},
		{ms(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20), 0.95, 19 * time.Millisecond},
		{ms(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 1, 10 * time.Millisecond},
	} {
		if got := tt.of.Quantile(tt.q); got != tt.want {
			t.Errorf("%v, %v: %s, want %s", tt.of, tt.q, got, tt.want)
		}
	}
}

func TestPretty(t *testing.T) {
	for d, want := range map[time.Duration]string{
		420 * time.Microsecond: "420 µs", 999600 * time.Nanosecond: "1.0 ms", 9940 * time.Microsecond: "9.9 ms",
		9960 * time.Microsecond:   "10 ms",
		123456 * time.Microsecond: "123 ms", 999600 * time.Microsecond: "1.00 s", 391 * time.Second: "391.00 s",
	} {
		if got := Pretty(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

// getrusage reports the same usage of this process.
func TestUsage(t *testing.T) {
	for began := time.Now(); time.Since(began) < 50*time.Millisecond; { // some CPU time to count
	}
	u, err := UsageOf("this", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	var ended syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ended); err != nil {
		t.Fatal(err)
	}
	used := time.Duration(r.Utime.Nano() + r.Stime.Nano() + ended.Utime.Nano() + ended.Stime.Nano())
	if u.CPU == 0 || used < u.CPU-2*ClockTick || used > u.CPU+time.Second {
		t.Errorf("CPU %s, getrusage says %s", u.CPU, used)
	}
	if peak := r.Maxrss << 10; u.RSS < 1<<20 || u.Peak < u.RSS || u.Peak > peak+peak/4 {
		t.Errorf("RSS %d, peak %d, getrusage says %d", u.RSS, u.Peak, peak)
	}
	if _, err := UsageOf("no process", 1<<30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such process: %v", err)
	}
}

func TestCPUTime(t *testing.T) {
	const stat = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 25 30 5 20 0"
	if got, err := cpuTime(stat); got != 2100*time.Millisecond || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range []string{"", "42 (a) S 1 2", "42 (a) S 1 2 3 4 5 6 7 8 9 10 x 25 0 0",
		"42 (a) S 1 2 3 4 5 6 7 8 9 10 1 25 0"} {
		if _, err := cpuTime(bad); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

func TestShares(t *testing.T) {
	before := []Usage{{Name: "a", CPU: time.Second}, {Name: "b"}}
	after := []Usage{{Name: "a", CPU: 3 * time.Second}, {Name: "new", CPU: time.Second}, {Name: "b"}}
	got := Shares(before, after, 4*time.Second)
	if len(got) != 2 || got[0] != (Share{"a", 0.5}) || got[1] != (Share{"b", 0}) {
		t.Errorf("%v", got)
	}
}

func TestMetric(t *testing.T) {
	for _, tt := range []struct {
		line, name string
		value      float64
		ok         bool
	}{
		{"fanfare_proxy_vips 12", "fanfare_proxy_vips", 12, true},
		{`a{ip_family="IPv4",b="c d"} 1.7e+09`, "a", 1.7e9, true},
		{"# HELP a b 1", "", 0, false},
		{"", "", 0, false},
		{"a b", "", 0, false},
	} {
		name, value, ok := metric(tt.line)
		if ok != tt.ok || ok && (name != tt.name || value != tt.value) {
			t.Errorf("%q: %q %v %t", tt.line, name, value, ok)
		}
	}
}

// Only the first message that adds an object with all the bytes counts.
func TestTableWatchFindsFirstAddition(t *testing.T) {
	pod := netip.MustParseAddr("10.244.1.12")
	l := &TableWatch{
		want:  [][]byte{binary.BigEndian.AppendUint16(pod.AsSlice(), 8080), []byte("web")},
		found: make(chan time.Time, 1),
	}
	message := func(kind int, data string) []byte {
		size := unix.NLMSG_HDRLEN + (len(data)+3)&^3
		m := make([]byte, size)
		m[0], m[4], m[5] = byte(size), byte(kind), unix.NFNL_SUBSYS_NFTABLES
		copy(m[unix.NLMSG_HDRLEN:], data)
		return m
	}
	named := "web\x0a\xf4\x01\x0c\x1f\x90yy"
	at := time.Unix(1, 0)
	for i, m := range [][]byte{
		message(unix.NFT_MSG_DELSETELEM, named),
		message(unix.NFT_MSG_NEWSETELEM, "web\x0a\xf4\x01\x0c\x1f\x91yy"),
		message(unix.NFT_MSG_NEWSETELEM, "api\x0a\xf4\x01\x0c\x1f\x90yy"),
		message(unix.NFT_MSG_NEWTABLE, named),
	} {
		if err := l.handle(at, m); err != nil || len(l.found) != 0 {
			t.Fatalf("message %d: %v, found %d", i, err, len(l.found))
		}
	}
	for i := range 2 {
		if err := l.handle(at.Add(time.Duration(i)), message(unix.NFT_MSG_NEWSETELEM, named)); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-l.found; got != at || len(l.found) != 0 {
		t.Errorf("found at %s, and %d more", got, len(l.found))
	}
}
