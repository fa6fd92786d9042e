package bgp

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bfd"
)

var fastBFD = BFD{Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 3}

// Two machines that hear each other are up after three packets, in whatever order,
// and each says what RFC 5880 has it say.
func TestBFDComesUp(t *testing.T) {
	for _, passive := range []bool{false, true} {
		a, b := newBFDMachine(fastBFD), newBFDMachine(fastBFD)
		b.conf.Passive = passive
		if passive && b.pause() != 0 {
			t.Error("the passive one speaks first")
		}
		for i := 0; a.state != packet.StateUp || b.state != packet.StateUp; i++ {
			if i == 3 {
				t.Fatalf("not up: %s and %s", stateNames[a.state], stateNames[b.state])
			}
			b.hear(a.say(false))
			a.hear(b.say(false))
		}
		if !a.polling || a.wish() != 50*time.Millisecond || a.silence() != 150*time.Millisecond && a.silence() != 3*slow {
			t.Errorf("polling %v, wish %s, silence %s", a.polling, a.wish(), a.silence())
		}
		if answer, _ := b.hear(a.say(false)); !answer || b.silence() != 150*time.Millisecond {
			t.Errorf("a poll is not answered, or silence is %s", b.silence())
		}
		a.hear(b.say(true))
		if a.polling {
			t.Error("polls on after the answer")
		}
	}
}

func TestBFDHears(t *testing.T) {
	up := func() *bfdMachine {
		m := newBFDMachine(fastBFD)
		m.state, m.theirs, m.multiplier, m.transmit = packet.StateUp, 7, 3, 50*time.Millisecond
		return m
	}
	for _, c := range []struct {
		name   string
		change func(h *packet.BFDHeader)
		want   string // state and what is lost
	}{
		{"the next packet", func(*packet.BFDHeader) {}, "Up "},
		{"down", func(h *packet.BFDHeader) { h.State = packet.StateDown }, "Down BFD: the router says that it does not hear this node"},
		{"down from one that has forgotten us", func(h *packet.BFDHeader) { h.State, h.YourDiscriminator = packet.StateDown, 0 },
			"Down BFD: the router says that it does not hear this node"},
		{"switched off", func(h *packet.BFDHeader) { h.State = packet.StateAdminDown }, "Down "},
		{"switched off, by the diagnostic", func(h *packet.BFDHeader) {
			h.State, h.Diagnostic = packet.StateDown, packet.DiagnosticAdministrativelyDown
		}, "Down "},
		{"of another session", func(h *packet.BFDHeader) { h.State, h.YourDiscriminator = packet.StateDown, 9 }, "Up "},
		{"up without our discriminator", func(h *packet.BFDHeader) { h.State, h.YourDiscriminator = packet.StateInit, 0 }, "Up "},
		{"no multiplier", func(h *packet.BFDHeader) { h.State, h.DetectTimeMultiplier = packet.StateDown, 0 }, "Up "},
		{"no discriminator", func(h *packet.BFDHeader) { h.State, h.MyDiscriminator = packet.StateDown, 0 }, "Up "},
		{"another version", func(h *packet.BFDHeader) { h.State, h.Version = packet.StateDown, 0 }, "Up "},
	} {
		m := up()
		h := &packet.BFDHeader{Version: 1, State: packet.StateUp, DetectTimeMultiplier: 3, MyDiscriminator: 7, YourDiscriminator: m.mine,
			DesiredMinTxInterval: 50000, RequiredMinRxInterval: 50000}
		c.change(h)
		_, lost := m.hear(h)
		if got := stateNames[m.state] + " " + lost; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	m := up()
	if lost := m.expire(); lost != "BFD: nothing heard from the router for 150ms" || m.state != packet.StateDown || m.theirs != 0 {
		t.Errorf("after silence: %q, %s", lost, stateNames[m.state])
	}
	if lost := m.expire(); lost != "" {
		t.Errorf("lost twice: %q", lost)
	}
}

// Whatever comes in whatever order: once both only hear each other, both are up.
func TestBFDFromAnyState(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		a, b := newBFDMachine(fastBFD), newBFDMachine(fastBFD)
		var did strings.Builder
		for range rng.IntN(30) {
			from, to := a, b
			if rng.IntN(2) == 0 {
				from, to = b, a
			}
			switch rng.IntN(4) {
			case 0:
				fmt.Fprint(&did, "silence ")
				to.expire()
			case 1: // lost on the way
			default:
				fmt.Fprintf(&did, "%s->%s ", stateNames[from.state], stateNames[to.state])
				to.hear(from.say(rng.IntN(2) == 0))
			}
		}
		for range 8 {
			b.hear(a.say(false))
			a.hear(b.say(false))
		}
		if a.state != packet.StateUp || b.state != packet.StateUp {
			t.Fatalf("seed %d: %s and %s after %s", seed, stateNames[a.state], stateNames[b.state], did.String())
		}
	}
}

func FuzzBFD(f *testing.F) {
	b, _ := newBFDMachine(fastBFD).say(false).MarshalBinary()
	f.Add(b)
	f.Fuzz(func(t *testing.T, body []byte) {
		m := newBFDMachine(fastBFD)
		h := &packet.BFDHeader{}
		if h.UnmarshalBinary(body) != nil {
			return
		}
		h.YourDiscriminator = m.mine
		m.hear(h)
		if m.silence() < 0 || m.pause() < 0 {
			t.Errorf("silence %s, pause %s", m.silence(), m.pause())
		}
		if _, err := m.say(false).MarshalBinary(); err != nil {
			t.Error(err)
		}
	})
}
