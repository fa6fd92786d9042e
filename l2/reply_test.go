package l2

import (
	"net/netip"
	"testing"
	"time"
)

// The answer to each packet, or the verdict. The node has 02:…:01 and :02. It holds .1
// and has just begun to probe .2; .3 belongs to another host, .4 has no interface. Of .5 the first
// probe has found no host; .6 is probed again after a conflict.
func TestReplyDecisions(t *testing.T) {
	for _, family := range []struct {
		name, prefix, unspecified string
	}{{"IPv4", "192.0.2.", "0.0.0.0"}, {"IPv6", "2001:db8::", "::"}} {
		at := func(last string) netip.Addr {
			if last == "" {
				return ip(family.unspecified)
			}
			return ip(family.prefix + last)
		}
		c := claims{
			mac: mac(1), own: map[MAC]bool{mac(1): true, mac(2): true}, speakers: map[MAC]bool{mac(3): true},
			addresses: map[netip.Addr]*address{
				at("1"): {phase: Held}, at("2"): {phase: Probing}, at("3"): {phase: Conflicting},
				at("4"): {phase: Waiting},
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
