package bgp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// A bfdEnd is one end in a simulation.
type bfdEnd interface {
	receive(now time.Time, p bfdPacket) bfdResult
	timer(now time.Time) bfdResult
	now() bfdState
	detectionTime() time.Duration
}

// A machineEnd is this package's.
type machineEnd struct{ m bfdMachine }

func (e *machineEnd) receive(now time.Time, p bfdPacket) (r bfdResult) {
	e.m, r = e.m.receive(now, p)
	return r
}

func (e *machineEnd) timer(now time.Time) (r bfdResult) {
	e.m, r = e.m.timer(now)
	return r
}

func (e *machineEnd) configure(now time.Time, conf BFD) (r bfdResult) {
	e.m, r = e.m.configure(now, conf)
	return r
}

func (e *machineEnd) now() bfdState                { return e.m.state }
func (e *machineEnd) detectionTime() time.Duration { return e.m.detection() }

// An frrEnd does what bfdd of FRR 8.4 does: it announces 1 s in both directions until it polls,
// and sends at 1 s until it has received a Final or a Poll.
type frrEnd struct {
	conf              BFD
	random            *rand.Rand
	state             bfdState
	diagnostic        bfdDiagnostic
	local, remote     uint32
	polling           bool
	current           bfdIntervals
	transmit, detect  time.Duration
	sendAt, expiresAt time.Time
}

func newFRREnd(conf BFD, random *rand.Rand) *frrEnd {
	return &frrEnd{conf: conf, random: random, state: bfdDown, local: random.Uint32() | 1,
		current: bfdIntervals{bfdSlow, bfdSlow}, transmit: bfdSlow}
}

func (e *frrEnd) receive(now time.Time, p bfdPacket) (r bfdResult) {
	if p.remote != 0 && p.remote != e.local {
		return e.result()
	}
	e.remote = p.local
	switch {
	case e.state == bfdUp && p.state <= bfdDown:
		r.send = e.down(now, bfdNeighborSaysDown)
	case e.state == bfdDown && p.state == bfdDown:
		e.state = bfdInit
	case e.state == bfdDown && p.state == bfdInit, e.state == bfdInit && p.state >= bfdInit:
		e.state, e.diagnostic, e.polling = bfdUp, 0, true
		r.send = []bfdPacket{e.packet(false)}
	}
	if e.polling && p.final {
		e.polling = false
		e.agree(now, p)
	}
	e.detect = time.Duration(p.multiplier) * max(e.current.receive, p.transmit)
	e.expiresAt = now.Add(e.detect)
	if p.poll {
		e.agree(now, p)
		r.send = append(r.send, e.packet(true))
	}
	r.next = e.result().next
	return r
}

// agree is bs_final_handler.
func (e *frrEnd) agree(now time.Time, p bfdPacket) {
	e.current = bfdIntervals{e.conf.Transmit, e.conf.Receive}
	e.transmit = max(e.conf.Transmit, p.receive)
	e.wait(now)
}

func (e *frrEnd) wait(now time.Time) {
	e.sendAt = now.Add(time.Duration((0.75 + 0.25*e.random.Float64()) * float64(e.transmit)))
}

func (e *frrEnd) down(now time.Time, why bfdDiagnostic) []bfdPacket {
	e.state, e.diagnostic, e.remote, e.polling = bfdDown, why, 0, false
	p := e.packet(false)
	e.current, e.transmit = bfdIntervals{bfdSlow, bfdSlow}, bfdSlow
	e.wait(now)
	return []bfdPacket{p}
}

func (e *frrEnd) timer(now time.Time) (r bfdResult) {
	if e.state >= bfdInit && !now.Before(e.expiresAt) {
		wasUp := e.state == bfdUp
		if r.send = e.down(now, bfdDetectionExpired); wasUp {
			r.lost = "nothing received"
		}
	}
	if !now.Before(e.sendAt) {
		r.send = append(r.send, e.packet(false))
		e.wait(now)
	}
	r.next = e.result().next
	return r
}

func (e *frrEnd) result() (r bfdResult) {
	r.next = e.sendAt
	if e.state >= bfdInit && e.expiresAt.Before(r.next) {
		r.next = e.expiresAt
	}
	return r
}

func (e *frrEnd) packet(final bool) bfdPacket {
	intervals := e.current
	if e.polling {
		intervals = bfdIntervals{e.conf.Transmit, e.conf.Receive}
	}
	return bfdPacket{state: e.state, diagnostic: e.diagnostic, poll: e.polling && !final, final: final,
		multiplier: e.conf.Multiplier, local: e.local, remote: e.remote, bfdIntervals: intervals}
}

func (e *frrEnd) now() bfdState                { return e.state }
func (e *frrEnd) detectionTime() time.Duration { return e.detect }

// A bfdSimulation is a link between two ends. Time passes at once, and all that is random
// follows from a seed.
type bfdSimulation struct {
	t      *testing.T
	name   string
	rng    *rand.Rand
	loss   float64 // the share of packets that get lost
	clock  time.Time
	ends   [2]bfdEnd
	next   [2]time.Time
	wire   []bfdInFlight
	lost   [2][]time.Time // when packets to each end were lost
	since  [2]time.Time   // when each end entered its state
	born   [2]time.Time   // when each end started
	leaves [2]int
	last   [2]bfdPacket // that each end sent
	story  []string     // without packets that repeat the last one
}

type bfdInFlight struct {
	at time.Time
	to int
	p  bfdPacket
}

func newBFDSimulation(t *testing.T, name string, seed uint64, ends func(s *bfdSimulation) [2]bfdEnd) *bfdSimulation {
	s := &bfdSimulation{
		t: t, name: fmt.Sprintf("%s, seed %d", name, seed), rng: rand.New(rand.NewPCG(seed, 0)), clock: bfdStart,
	}
	s.ends = ends(s)
	for i := range s.ends {
		s.restart(i, s.ends[i])
	}
	return s
}

// restart puts another end in the place of end i.
func (s *bfdSimulation) restart(i int, e bfdEnd) {
	s.ends[i], s.since[i], s.born[i] = e, s.clock, s.clock
	s.record("end %d starts", i)
	s.act(i, func() bfdResult { return e.timer(s.clock) })
}

func (s *bfdSimulation) record(format string, args ...any) {
	s.story = append(s.story, fmt.Sprintf("%8.4f ", s.clock.Sub(bfdStart).Seconds())+fmt.Sprintf(format, args...))
	s.story = s.story[max(0, len(s.story)-60):]
}

func (s *bfdSimulation) fail(format string, args ...any) {
	s.t.Fatalf("%s: %s\n%s", s.name, fmt.Sprintf(format, args...), strings.Join(s.story, "\n"))
}

// act is an event of end i.
func (s *bfdSimulation) act(i int, event func() bfdResult) {
	before, detection := s.ends[i].now(), s.ends[i].detectionTime()
	// FRR takes a Poll for the Final of its own, and demands an interval that the other end does
	// not know if its packets got lost.
	frr, unconfirmed := s.ends[i].(*frrEnd)
	unconfirmed = unconfirmed && frr.polling &&
		slices.ContainsFunc(s.lost[1-i], func(at time.Time) bool { return !at.Before(s.since[i]) })
	r := event()
	s.next[i] = r.next
	for _, p := range r.send {
		s.send(i, p)
	}
	if after := s.ends[i].now(); after != before {
		s.record("end %d: %s -> %s %s", i, before, after, r.lost)
		if before == bfdUp {
			s.leaves[i]++
			if strings.Contains(r.lost, "nothing received") && !unconfirmed {
				s.justify(i, detection)
			}
		}
		s.since[i] = s.clock
	}
}

// justify finds the cause of a silence that end i has detected: the other end has started or
// left the state Up since, or so many of its packets got lost as it must have sent.
func (s *bfdSimulation) justify(i int, detection time.Duration) {
	begin := s.clock.Add(-detection)
	other := 1 - i
	if s.ends[other].now() != bfdUp || s.since[other].After(begin) || s.born[other].After(s.since[i]) {
		return
	}
	n := 0
	for _, at := range s.lost[i] {
		if at.After(begin) {
			n++
		}
	}
	want := 3
	if _, frr := s.ends[other].(*frrEnd); frr {
		want = 2 // its jitter reaches 100 %
	}
	if n < want {
		s.fail("end %d was silent for %s, and only %d of its packets got lost", other, detection, n)
	}
}

func (s *bfdSimulation) send(from int, p bfdPacket) {
	to := 1 - from
	fate := ""
	if s.rng.Float64() < s.loss {
		s.lost[to] = append(s.lost[to], s.clock)
		fate = " (lost)"
	} else {
		at := s.clock.Add(100*time.Microsecond + time.Duration(s.rng.Int64N(int64(time.Millisecond))))
		for _, f := range s.wire {
			if f.to == to && f.at.After(at) {
				at = f.at // a link keeps the order
			}
		}
		s.wire = append(s.wire, bfdInFlight{at, to, p})
		slices.SortStableFunc(s.wire, func(a, b bfdInFlight) int { return a.at.Compare(b.at) })
	}
	if p != s.last[from] || fate != "" {
		s.record("end %d: %s%s", from, bfdSighting{bfdPacket: p}, fate)
	}
	s.last[from] = p
}

// run lets time pass.
func (s *bfdSimulation) run(d time.Duration) {
	end := s.clock.Add(d)
	for {
		at, event := end, func() {}
		for i := range s.ends {
			if s.next[i].Before(at) {
				at, event = s.next[i], func() { s.act(i, func() bfdResult { return s.ends[i].timer(s.clock) }) }
			}
		}
		if len(s.wire) > 0 && s.wire[0].at.Before(at) {
			first := s.wire[0]
			at, event = first.at, func() {
				s.wire = s.wire[1:]
				s.act(first.to, func() bfdResult { return s.ends[first.to].receive(s.clock, first.p) })
			}
		}
		if at.After(s.clock) {
			s.clock = at
		}
		if at == end {
			return
		}
		event()
	}
}

// settle fails if both ends are not up soon on a link without loss, or do not remain so.
func (s *bfdSimulation) settle() {
	s.t.Helper()
	s.loss = 0
	s.run(10 * time.Second)
	before := s.leaves
	s.run(20 * time.Second)
	if s.ends[0].now() != bfdUp || s.ends[1].now() != bfdUp || s.leaves != before {
		s.fail("%s and %s, having left the state Up %v and then %v times", s.ends[0].now(), s.ends[1].now(), before,
			s.leaves)
	}
}

// The kinds of other ends that simulations have.
var bfdOthers = map[string]func(conf BFD, rng *rand.Rand) bfdEnd{
	"Fanfare": func(conf BFD, rng *rand.Rand) bfdEnd { return &machineEnd{newBFDMachine(conf, rng.Uint64())} },
	"FRR":     func(conf BFD, rng *rand.Rand) bfdEnd { return newFRREnd(conf, rng) },
}

func simulateBFD(t *testing.T, runs int, play func(s *bfdSimulation, fresh [2]func() bfdEnd)) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	for kind, other := range bfdOthers {
		for run := range uint64(runs) {
			var fresh [2]func() bfdEnd
			s := newBFDSimulation(t, kind, seed+run, func(s *bfdSimulation) [2]bfdEnd {
				fresh[0] = func() bfdEnd { return bfdOthers["Fanfare"](fastBFD, s.rng) }
				fresh[1] = func() bfdEnd { return other(fastBFD, s.rng) }
				return [2]bfdEnd{fresh[0](), fresh[1]()}
			})
			play(s, fresh)
		}
	}
}

// On a link without loss each restart costs the other end one session, and nothing else.
func TestBFDSimulatedRestarts(t *testing.T) {
	simulateBFD(t, 50, func(s *bfdSimulation, fresh [2]func() bfdEnd) {
		s.run(3 * time.Second)
		restarts := [2]int{}
		for range 10 {
			i := s.rng.IntN(2)
			restarts[1-i]++
			if s.rng.IntN(2) == 0 { // crashed for a while
				s.next[i] = bfdStart.Add(time.Hour)
				s.ends[i], s.since[i] = &deadEnd{s.ends[i]}, s.clock
				s.run(time.Duration(s.rng.Int64N(int64(time.Second))))
			}
			s.restart(i, fresh[i]())
			s.run(5 * time.Second)
			if s.ends[0].now() != bfdUp || s.ends[1].now() != bfdUp || s.leaves[0] > restarts[0] ||
				s.leaves[1] > restarts[1] {
				s.fail("%s and %s, having left the state Up %v times, and other ends restarted %v times",
					s.ends[0].now(), s.ends[1].now(), s.leaves, restarts)
			}
		}
		s.settle()
	})
}

// A deadEnd ignores all events.
type deadEnd struct{ bfdEnd }

func (e *deadEnd) receive(time.Time, bfdPacket) (r bfdResult) {
	r.next = bfdStart.Add(time.Hour)
	return r
}
func (e *deadEnd) now() bfdState                     { return bfdDown }
func (e *deadEnd) timer(now time.Time) (r bfdResult) { return e.receive(now, bfdPacket{}) }

// With random loss an end leaves the state Up only if all packets of a detection time were
// lost, whatever happens to intervals meanwhile.
func TestBFDSimulatedLoss(t *testing.T) {
	simulateBFD(t, 50, func(s *bfdSimulation, fresh [2]func() bfdEnd) {
		s.loss = s.rng.Float64() * 0.4
		for range 20 {
			switch i := s.rng.IntN(2); s.rng.IntN(4) {
			case 0:
				s.restart(i, fresh[i]())
			case 1:
				s.run(time.Duration(s.rng.Int64N(int64(10 * time.Second))))
			default:
				if e, ok := s.ends[i].(*machineEnd); ok {
					conf := BFD{Transmit: randomInterval(s.rng), Receive: randomInterval(s.rng), Multiplier: 3}
					s.record("end %d: %+v", i, conf)
					s.act(i, func() bfdResult { return e.configure(s.clock, conf) })
				}
			}
			s.run(time.Duration(s.rng.Int64N(int64(time.Second))))
		}
		s.settle()
	})
}

func randomInterval(rng *rand.Rand) time.Duration {
	return []time.Duration{10, 50, 100, 300, 1000, 3000}[rng.IntN(6)] * time.Millisecond
}

// Each end may freeze for any time. It forgives itself, and both are up for good afterwards.
func TestBFDSimulatedFreezes(t *testing.T) {
	simulateBFD(t, 25, func(s *bfdSimulation, _ [2]func() bfdEnd) {
		s.run(3 * time.Second)
		for range 5 {
			i := s.rng.IntN(2)
			frozen := s.ends[i]
			inbox := &frozenEnd{deadEnd: deadEnd{frozen}}
			s.ends[i], s.next[i] = inbox, bfdStart.Add(time.Hour)
			s.run(time.Duration(s.rng.Int64N(int64(2 * time.Second))))
			s.ends[i], s.since[i] = frozen, s.clock
			s.record("end %d goes on", i)
			for _, p := range inbox.packets {
				s.act(i, func() bfdResult { return frozen.receive(s.clock, p) })
			}
			s.act(i, func() bfdResult { return frozen.timer(s.clock) })
			s.settle()
		}
	})
}

// A frozenEnd keeps what it receives for later.
type frozenEnd struct {
	deadEnd
	packets []bfdPacket
}

func (e *frozenEnd) receive(now time.Time, p bfdPacket) bfdResult {
	e.packets = append(e.packets, p)
	return e.deadEnd.receive(now, p)
}

// Whatever happened before in whatever order: on a link that carries packets again, both ends
// come up.
func TestBFDFromAnyState(t *testing.T) {
	simulateBFD(t, 50, func(s *bfdSimulation, fresh [2]func() bfdEnd) {
		for range s.rng.IntN(20) {
			s.loss = []float64{0, 0.5, 0.9, 1}[s.rng.IntN(4)]
			if i := s.rng.IntN(4); i < 2 {
				s.restart(i, fresh[i]())
			}
			s.run(time.Duration(s.rng.Int64N(int64(3 * time.Second))))
		}
		s.settle()
	})
}
