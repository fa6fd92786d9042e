package l2

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// The answer to each packet, or the verdict. The node has 02:…:01 and :02. It holds .1
// and has just begun to probe .2; .3 belongs to another host, .4 has no interface. Of .5 the first
// probe has found no host; .6 is probed again after a conflict.
func TestReplyDecisions(t *testing.T) {
	for _, family := range []struct{ name, prefix, unspecified string }{{"IPv4", "192.0.2.", "0.0.0.0"}, {"IPv6", "2001:db8::", "::"}} {
		at := func(last string) netip.Addr {
			if last == "" {
				return ip(family.unspecified)
			}
			return ip(family.prefix + last)
		}
		c := claims{
			mac: mac(1), own: map[MAC]bool{mac(1): true, mac(2): true}, speakers: map[MAC]bool{mac(3): true},
			addresses: map[netip.Addr]*address{
				at("1"): {phase: Held}, at("2"): {phase: Probing}, at("3"): {phase: Conflicting}, at("4"): {phase: Waiting},
				at("5"): {phase: Probing, early: true}, at("6"): {phase: Probing, strikes: 1},
			},
		}
		for _, tt := range []struct {
			name   string
			op     op
			from   byte
			sender string // empty: unspecified
			target string
			want   verdict
		}{
			{"asks for ours", opRequest, 0x10, "9", "1", answered},
			{"probes ours", opRequest, 0x10, "", "1", answered},
			{"another speaker's kernel asks", opRequest, 3, "9", "1", answered},
			{"another speaker probes what we hold", opRequest, 3, "", "1", answered},
			{"asks for another", opRequest, 0x10, "9", "7", otherAddress},
			{"asks for an address whose first probe is out", opRequest, 0x10, "9", "2", deferred},
			{"asks for an address that the first probe found free", opRequest, 0x10, "9", "5", answered},
			{"probes it", opRequest, 0x10, "", "5", conflicting},
			{"another speaker probes it", opRequest, 3, "", "5", notHeld},
			{"another speaker has it", opReply, 3, "5", "9", fromSpeaker},
			{"answers the second probe", opReply, 0x10, "5", "9", conflicting},
			{"asks for an address that was in use", opRequest, 0x10, "9", "6", notHeld},
			{"asks for an address that was given up", opRequest, 0x10, "9", "3", notHeld},
			{"asks for an address without an interface", opRequest, 0x10, "9", "4", notHeld},
			{"probes what we probe", opRequest, 0x10, "", "2", conflicting},
			{"another speaker probes what we probe", opRequest, 3, "", "2", notHeld},
			{"probes what we gave up", opRequest, 0x10, "", "3", notHeld},
			{"is a reply", opReply, 0x10, "9", "1", otherAddress},
			{"claims ours in a reply", opReply, 0x10, "1", "9", conflicting},
			{"announces ours", opRequest, 0x10, "1", "1", conflicting},
			{"asks for another from ours", opRequest, 0x10, "1", "9", conflicting},
			{"answers our probe", opReply, 0x10, "2", "9", conflicting},
			{"has what we gave up", opReply, 0x10, "3", "9", notHeld},
			{"another speaker has ours", opReply, 3, "1", "9", fromSpeaker},
			{"another speaker has what we probe", opReply, 3, "2", "9", fromSpeaker},
			{"our own announcement", opReply, 1, "1", "9", fromSelf},
			{"our own probe", opRequest, 1, "", "2", fromSelf},
			{"that of another interface", opRequest, 2, "1", "1", fromSelf},
		} {
			t.Run(family.name+" "+tt.name, func(t *testing.T) {
				in := packet{op: tt.op, from: mac(tt.from), to: mac(1), sender: at(tt.sender), target: at(tt.target)}
				out, got := reply(in, c)
				if got != tt.want {
					t.Errorf("%s, want %s", got, tt.want)
				}
				want := replyTo(in, mac(1))
				want.tentative = in.target == at("5") && family.name == "IPv6"
				if got == answered && out != want || got != answered && out != (packet{}) {
					t.Errorf("answer %+v", out)
				}
			})
		}
	}
}

// Answers to each sender are limited, and memory is bounded whatever the number of senders.
func TestLimiter(t *testing.T) {
	var l limiter
	now := time.Unix(1e9, 0)
	allowed := func(m MAC, tries int) (n int) {
		for range tries {
			if l.allow(m, now) {
				n++
			}
		}
		return n
	}
	if got := allowed(mac(1), 2*answerBurst); got != answerBurst {
		t.Errorf("%d answers at once, want %d", got, answerBurst)
	}
	if got := allowed(mac(2), 1); got != 1 {
		t.Error("another sender has to wait for the first")
	}
	now = now.Add(time.Second / 2)
	if got := allowed(mac(1), answerBurst); got != answersPerSecond/2 {
		t.Errorf("%d answers in half a second, want %d", got, answersPerSecond/2)
	}
	total := 0
	for i := range 100_000 {
		total += allowed(MAC{6, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}, 1)
	}
	if len(l.senders) > maxSenders || total > maxSenders+answerBurst {
		t.Errorf("%d senders are remembered, and got %d answers", len(l.senders), total)
	}
	now = now.Add(time.Minute)
	if got := allowed(MAC{10}, 1); got != 1 || len(l.senders) > 1 {
		t.Errorf("after a minute, %d senders are remembered", len(l.senders))
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
				" 100ms 2001:db8::1 7; 100ms 192.0.2.1 7; 500ms 2001:db8::1 8; 500ms 192.0.2.1 8; 1.5s 2001:db8::1 9; 1.5s 192.0.2.1 9;" +
				" 3.5s 2001:db8::1 10; 3.5s 192.0.2.1 10; 7.5s 2001:db8::1 11; 7.5s 192.0.2.1 11; nothing more"},
		{"refreshing", time.Minute, 3 * time.Minute, []*timer{at("2001:db8::1", again5)},
			"4s 2001:db8::1 11; 1m4s 2001:db8::1 12; 2m4s 2001:db8::1 12"},
		{"probing, with an announcement that comes first", 0, time.Second, []*timer{at("192.0.2.2", probe1), at("192.0.2.1", announce)},
			"0s 192.0.2.1 0; 0s 192.0.2.1 1; 0s 192.0.2.2 2; 20ms 192.0.2.2 3; 100ms 192.0.2.1 7; 200ms 192.0.2.2 4; 400ms 192.0.2.2 5; 500ms 192.0.2.1 8; 700ms 192.0.2.2 6"},
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
			t.Errorf("%s: stale %t and %t, want %t and %t", tt.name, probing.stale(), announcing.stale(), tt.probeStale, tt.announceStale)
		}
	}
}

// All addresses are announced once before any is announced a second time.
func TestScheduleFirstAnnouncementsFirst(t *testing.T) {
	a := schedule{delays: defaultDelays(0)}
	now := time.Unix(1e9, 0)
	const n = 1000
	for i := range n {
		a.add(&timer{address: &address{want: Address{Addr: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}}}, now)
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
