package l2

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// A process that is suspended while repetitions of an announcement are due sends them later, when
// the caller of Set knows which node answers now. What the caller then announces is sent at once.
func TestSuspendedProcessAnnouncesLater(t *testing.T) {
	const before = "0s announces it\n100ms announces it\n500ms announces it\n1.5s announces it\n"
	for _, tt := range []struct {
		name                 string
		suspended, continues time.Duration
		announces            bool // at the end of the suspension
		want                 string
	}{
		{"not at all", 2 * time.Second, 2 * time.Second, false, "3.5s announces it\n7.5s announces it\n"},
		{"shorter than a takeover takes", 2 * time.Second, 3 * time.Second, false,
			"3.5s announces it\n7.5s announces it\n"},
		{"until a repetition is due", 2 * time.Second, 3600 * time.Millisecond, false,
			"6.6s announces it\n10.6s announces it\n"},
		{"until shortly before", 4 * time.Second, 7 * time.Second, false, "3.5s announces it\n10s announces it\n"},
		{"for long", 2 * time.Second, 12 * time.Second, false, "15s announces it\n19s announces it\n"},
		{"for long, and has the address still", 2 * time.Second, 12 * time.Second, true,
			"12s announces it\n15s announces it\n15.4s announces it\n16.4s announces it\n18.4s announces " +
				"it\n22.4s announces it\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDryRun(t, "2001:db8::1")
			d.x.needsProbe = false
			d.assign()
			d.at(tt.suspended)
			d.now = d.start.Add(tt.continues)
			if tt.announces {
				d.a.phases.startAnnouncing(d.x, d.x.sockets(), d.now)
			}
			d.at(tt.continues + 20*time.Second)
			d.expect(Held, before+tt.want)
		})
	}
}

// The schedule gets the time as an argument and returns what to send.
func TestSchedule(t *testing.T) {
	start := time.Unix(1e9, 0)
	run := func(a schedule, until time.Duration, turns ...*timer) (got []string) {
		now := start
		for _, tn := range turns {
			a.add(tn, now)
		}
		for now.Sub(start) <= until {
			tn, wait, ok := a.pop(now)
			if tn == nil {
				if !ok {
					return append(got, "nothing more")
				}
				now = now.Add(wait)
				continue
			}
			got = append(got, fmt.Sprintf("%s %s %d", now.Sub(start), tn.address.want.Addr, tn.stage))
			a.follow(tn, now)
		}
		return got
	}
	at := func(s string, stage stage) *timer {
		return &timer{address: &address{want: Address{Addr: ip(s)}}, stage: stage}
	}
	for _, tt := range []struct {
		name    string
		refresh time.Duration
		until   time.Duration
		turns   []*timer
		want    string
	}{
		{"announcements", 0, time.Hour, []*timer{at("192.0.2.1", announce), at("2001:db8::1", announce)},
			"0s 192.0.2.1 0; 0s 2001:db8::1 0; 0s 192.0.2.1 1;" +
				" 100ms 2001:db8::1 7; 100ms 192.0.2.1 7; 500ms 2001:db8::1 8; 500ms 192.0.2.1 8; 1.5s 2001:db8::1 " +
				"9; 1.5s 192.0.2.1 9;" +
				" 3.5s 2001:db8::1 10; 3.5s 192.0.2.1 10; 7.5s 2001:db8::1 11; 7.5s 192.0.2.1 11; nothing more"},
		{"refreshing", time.Minute, 3 * time.Minute, []*timer{at("2001:db8::1", again5)},
			"4s 2001:db8::1 11; 1m4s 2001:db8::1 12; 2m4s 2001:db8::1 12"},
		{"probing, with an announcement that comes first", 0, time.Second,
			[]*timer{at("192.0.2.2", probe1), at("192.0.2.1", announce)},
			"0s 192.0.2.1 0; 0s 192.0.2.1 1; 0s 192.0.2.2 2; 20ms 192.0.2.2 3; 100ms 192.0.2.1 7; 200ms 192.0.2.2 4; " +
				"400ms 192.0.2.2 5; 500ms 192.0.2.1 8; 700ms 192.0.2.2 6"},
		{"after a conflict", 0, time.Hour, []*timer{at("192.0.2.2", retry5), at("192.0.2.1", retry1)},
			"30s 192.0.2.1 13; 5m0s 192.0.2.2 17; nothing more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := run(schedule{delays: defaultDelays(tt.refresh)}, tt.until, tt.turns...)
			if text := join(got); text != tt.want {
				t.Errorf("got\n%s\nwant\n%s", text, tt.want)
			}
		})
	}
}

func join(lines []string) string {
	text := ""
	for i, l := range lines {
		if i > 0 {
			text += "; "
		}
		text += l
	}
	return text
}

// A timer does nothing once its address has changed.
func TestStaleTimersDoNothing(t *testing.T) {
	here, there := &packetSocket{}, &packetSocket{}
	for _, tt := range []struct {
		name          string
		change        func(x *address)
		probeStale    bool // whether the address's own timer is stale
		announceStale bool // whether the socket's timer is stale
	}{
		{"nothing", func(*address) {}, false, false},
		{"given up", func(x *address) { x.phase = Conflicting }, false, true},
		{"no longer on the socket", func(x *address) { x.claims = x.claims[1:] }, false, true},
		{"gone", func(x *address) { x.claims, x.timer = nil, nil }, true, true},
		{"started again", func(x *address) { x.claims[0].timer, x.timer = &timer{}, &timer{} }, true, true},
	} {
		x := &address{phase: Held, timer: &timer{}}
		x.claims = []claim{{here, &timer{socket: here}}, {there, &timer{socket: there}}}
		probing, announcing := x.timer, x.claims[0].timer
		probing.address, announcing.address = x, x
		tt.change(x)
		if probing.stale() != tt.probeStale || announcing.stale() != tt.announceStale {
			t.Errorf("%s: stale %t and %t, want %t and %t", tt.name, probing.stale(), announcing.stale(), tt.probeStale,
				tt.announceStale)
		}
	}
}

// All addresses are announced once before any is announced a second time.
func TestScheduleFirstAnnouncementsFirst(t *testing.T) {
	a := schedule{delays: defaultDelays(0)}
	now := time.Unix(1e9, 0)
	const n = 1000
	for i := range n {
		a.add(&timer{address: &address{want: Address{Addr: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}}},
			now)
	}
	for i := range 3 * n {
		tn, _, _ := a.pop(now)
		if want := []stage{announce, confirm, again1}[i/n]; tn == nil || tn.stage != want {
			t.Fatalf("turn %d is %+v, want stage %d", i, tn, want)
		}
		a.follow(tn, now)
		now = now.Add(time.Millisecond) // a slow link: repetitions of the first addresses are due long before
	}
}
