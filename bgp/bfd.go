package bgp

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// bfdSlow is the shortest transmission interval while the session is not up (RFC 5880 section
// 6.8.3).
const bfdSlow = time.Second

// A bfdMachine is one end of RFC 5880 section 6.8 as a value, without socket and clock. Each event
// is a method: it takes the time of the event, and returns the new machine and what the caller must
// do. Deadlines are computed from current values, never stored, so that a changed interval moves
// them at once.
//
// It sends a Required Min Echo RX Interval of 0 and no Demand bit, so that routers use neither echo
// (section 6.4) nor demand mode (section 6.6). A router that requires authentication (section 6.7)
// discards its packets, and the session stays down.
type bfdMachine struct {
	conf       BFD
	local      uint32   // discriminator
	random     rand.PCG // of the jitter
	state      bfdState
	diagnostic bfdDiagnostic
	reason     string // why the session is not up; empty before it was up for the first time

	// announced are the intervals in this node's packets. During a Poll sequence the router may not
	// know them yet; confirmed are the intervals before.
	announced, confirmed bfdIntervals
	polling              bool

	router bfdRouter
	sent   time.Time // the last periodic packet; zero if the next one is due at once
	jitter float64   // the share of the interval between that packet and the next
}

// A bfdRouter is the state of the other end, as its packets say.
type bfdRouter struct {
	discriminator uint32 // 0 while unknown
	multiplier    uint8
	bfdIntervals                // of the last packet
	pace          time.Duration // the interval at which it sends: transmit, or a longer earlier one
	polling       bool          // whether the last packet was a Poll
	closePolls    int           // consecutive Polls that arrived at the interval that they announce
	heard         time.Time
}

// A bfdResult is what the caller must do after an event.
type bfdResult struct {
	send []bfdPacket // in this order
	next time.Time   // when to call timer, unless another event is first; zero: never
	lost string      // why a router that was up is lost; empty if none is
	// discarded is why the packet of this event was ignored.
	discarded string
}

// newBFDMachine returns a machine. Its discriminator and jitter are derived from seed.
func newBFDMachine(conf BFD, seed uint64) bfdMachine {
	m := bfdMachine{conf: conf, state: bfdDown, random: *rand.NewPCG(seed, 0)}
	m.local = rand.New(&m.random).Uint32N(1<<32-1) + 1
	m.router.receive = bfdSlow // until its first packet says otherwise
	m.propose()
	return m
}

// receive handles a received packet (RFC 5880 section 6.8.6).
func (m bfdMachine) receive(now time.Time, p bfdPacket) (bfdMachine, bfdResult) {
	if p.remote != 0 && p.remote != m.local {
		r := m.result(now)
		r.discarded = fmt.Sprintf("BFD packet: your discriminator %#x, want %#x: it is for another session", p.remote,
			m.local)
		return m, r
	}
	// A router whose detection time has ended sends 0, from the discriminator that this node knows (RFC
	// 5880 section 6.8.1). A host that spoofs the router's address knows neither. A router that has
	// restarted does not either, and counts as silent until the detection time ends.
	if p.remote == 0 && m.state == bfdUp && p.local != m.router.discriminator {
		r := m.result(now)
		r.discarded = fmt.Sprintf("BFD packet: your discriminator 0, my discriminator %#x, want %#x "+
			"while the session is up", p.local, m.router.discriminator)
		return m, r
	}
	m.router.learn(now, p, m.receiveInterval())
	if p.final && m.polling {
		m.polling, m.confirmed = false, m.announced
	}
	lost := m.follow(p)
	m.propose()
	var answer []bfdPacket
	if p.poll { // at once, whatever the timer says (section 6.5)
		answer = []bfdPacket{m.packet(true)}
	}
	r := m.result(now)
	r.send, r.lost = append(answer, r.send...), lost
	return m, r
}

// timer handles the deadline of the last result, or any other moment.
func (m bfdMachine) timer(now time.Time) (bfdMachine, bfdResult) {
	lost := ""
	if at := m.expiry(); !at.IsZero() && !now.Before(at) {
		// If the timer is late by a whole packet, this node had no CPU time or was suspended.
		// Packets of the router may still wait to be read.
		if now.Sub(at) > m.conf.Receive {
			m.router.heard = now
		} else {
			lost = m.expire()
		}
	}
	r := m.result(now)
	r.lost = lost
	return m, r
}

// adminDown returns the last packet. It says that the following silence is not a failure.
func (m bfdMachine) adminDown() bfdPacket {
	m.state, m.diagnostic = bfdAdminDown, bfdAdministratively
	m.propose()
	return m.packet(false)
}

// learn stores the content of a packet.
func (r *bfdRouter) learn(now time.Time, p bfdPacket, receive time.Duration) {
	pace := p.transmit
	if p.state != bfdUp { // for a moment FRR still announces the interval from before (section 6.8.3)
		pace = max(pace, bfdSlow)
	}
	// A router that polls for a shorter interval may use it only after the Final (FRR), which may
	// be lost. Three Polls at that interval show that the router uses it already; two may be close
	// by chance.
	if r.polling && p.poll && p.transmit == r.transmit && now.Sub(r.heard) <= max(pace, receive) {
		r.closePolls++
	} else {
		r.closePolls = 0
	}
	if pace >= r.pace || !p.poll || r.closePolls >= 2 {
		r.pace = pace
	}
	r.discriminator, r.multiplier, r.bfdIntervals, r.polling, r.heard = p.local, p.multiplier, p.bfdIntervals, p.poll,
		now
}

// follow changes the state according to the router's state. It returns why the router is lost.
func (m *bfdMachine) follow(p bfdPacket) (lost string) {
	off := p.state == bfdAdminDown || p.state == bfdDown && p.diagnostic == bfdAdministratively
	switch {
	case off:
		// An operator has disabled BFD on the router, which is no failure (RFC 5882 section 3.2).
		// Some routers show that by the diagnostic only.
		if m.reason = "the router has switched it off"; m.state != bfdDown {
			m.fall(bfdNeighborSaysDown, m.reason)
		}
	case p.state == bfdDown && m.state == bfdUp:
		m.fall(bfdNeighborSaysDown, "the router says that it does not hear this node")
		return "BFD: " + m.reason
	case p.state == bfdDown && m.state == bfdDown:
		m.move(bfdInit)
	case p.state == bfdInit && m.state != bfdUp, p.state == bfdUp && m.state == bfdInit:
		m.diagnostic = bfdNoDiagnostic
		m.move(bfdUp)
	}
	return ""
}

// expire handles the end of the detection time. It returns why the router is lost, if it was up.
func (m *bfdMachine) expire() (lost string) {
	reason := fmt.Sprintf("nothing received from the router for %s", m.detection())
	if m.state == bfdUp {
		lost = "BFD: " + reason
	}
	if m.state != bfdDown {
		m.fall(bfdDetectionExpired, reason)
	}
	// With zero, a router that has restarted can match this node's packets (section
	// 6.8.1).
	m.router.discriminator = 0
	return lost
}

func (m *bfdMachine) fall(why bfdDiagnostic, reason string) {
	m.diagnostic, m.reason = why, reason
	m.move(bfdDown)
}

// move changes the state, and sends it to the router at once (section 6.8.7).
func (m *bfdMachine) move(to bfdState) {
	m.state, m.sent = to, time.Time{}
	m.propose()
}

// propose announces the intervals for the configuration and the state. While the session is up this
// begins a Poll sequence, unless another one still waits for its Final.
func (m *bfdMachine) propose() {
	want := bfdIntervals{transmit: m.conf.Transmit, receive: m.conf.Receive}
	switch {
	case m.state != bfdUp:
		want.transmit = max(want.transmit, bfdSlow)
		m.announced, m.confirmed, m.polling = want, want, false
	case !m.polling && want != m.announced:
		m.announced, m.polling = want, true
	}
}

// transmitInterval is the interval between periodic packets, before jitter. A router that does not
// know yet that the interval grows would take the pause for silence, so the shorter one applies
// until the Final (section 6.8.3).
func (m *bfdMachine) transmitInterval() time.Duration {
	return max(min(m.announced.transmit, m.confirmed.transmit), m.router.receive)
}

// receiveInterval is the shortest interval at which the router may send. A router that does not
// know yet that the interval has shrunk still sends at the longer one.
func (m *bfdMachine) receiveInterval() time.Duration {
	return max(m.announced.receive, m.confirmed.receive)
}

// detection is the detection time: the router is lost after such a silence (section 6.8.4).
func (m *bfdMachine) detection() time.Duration {
	return time.Duration(m.router.multiplier) * max(m.receiveInterval(), m.router.pace)
}

// agreed is the detection time while the router is up, otherwise 0.
func (m *bfdMachine) agreed() time.Duration {
	if m.state != bfdInit && m.state != bfdUp {
		return 0
	}
	return m.detection()
}

// expiry is when the detection time ends. It is zero while the router is unknown.
func (m *bfdMachine) expiry() time.Time {
	if m.router.discriminator == 0 {
		return time.Time{}
	}
	return m.router.heard.Add(m.detection())
}

// quiet reports whether this node must not send periodic packets (section 6.8.7).
func (m *bfdMachine) quiet() bool {
	return m.conf.Passive && m.router.discriminator == 0 || m.router.receive == 0
}

// due is when the next periodic packet is due, unless quiet.
func (m *bfdMachine) due() time.Time {
	if m.sent.IsZero() {
		return time.Time{}
	}
	return m.sent.Add(time.Duration(m.jitter * float64(m.transmitInterval())))
}

// result sends the periodic packet if it is due, and computes the next deadline.
func (m *bfdMachine) result(now time.Time) (r bfdResult) {
	if !m.quiet() && !m.due().After(now) {
		m.sent = now
		// At most 90 %, which is allowed with any multiplier (section 6.8.7).
		m.jitter = 0.75 + 0.15*rand.New(&m.random).Float64()
		r.send = []bfdPacket{m.packet(false)}
	}
	r.next = m.expiry()
	if due := m.due(); !m.quiet() && (r.next.IsZero() || due.Before(r.next)) {
		r.next = due
	}
	return r
}

// packet returns this node's next packet. A Final answers a Poll and is not a Poll itself.
func (m *bfdMachine) packet(final bool) bfdPacket {
	return bfdPacket{
		state: m.state, diagnostic: m.diagnostic, poll: m.polling && !final, final: final,
		multiplier: m.conf.Multiplier, local: m.local, remote: m.router.discriminator, bfdIntervals: m.announced,
	}
}
