package bgp

import (
	"fmt"
	"math/rand/v2"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bfd"
)

// A BFD says how fast a silent router is noticed (RFC 5880, and RFC 5881 for a
// router that is directly connected). The zero value: not at all, but by the hold
// timer.
type BFD struct {
	// Transmit is how often we send at most, Receive how often the router may send:
	// 10 ms to 60 s each. The slower of both sides counts, in each direction.
	Transmit, Receive time.Duration
	// Multiplier is after how many packets that did not come we count as silent to
	// the router, 2 to 255. The router's own says when it does to us.
	Multiplier uint8
	// Passive waits for the router's first packet before it sends any.
	Passive bool
}

func (b BFD) enabled() bool { return b != BFD{} }

// slow is how often packets are sent at most while the router may not be there
// (RFC 5880 §6.8.3).
const slow = time.Second

// A bfdMachine is one side of RFC 5880 §6.8, without sockets and clocks. There is
// no echo, no demand mode and no authentication.
type bfdMachine struct {
	conf         BFD
	state        packet.StateType
	diagnostic   packet.DiagnosticType
	mine, theirs uint32 // discriminators; theirs is 0 while unknown
	polling      bool   // we have asked for a confirmation of a faster interval
	reason       string // why it is down, for an operator; empty before it was up

	// What the router said in its last packet.
	multiplier        uint8
	transmit, receive time.Duration
}

func newBFDMachine(conf BFD) *bfdMachine {
	return &bfdMachine{conf: conf, state: packet.StateDown, mine: rand.Uint32N(1<<32-1) + 1, receive: slow}
}

// hear takes a packet of the router's (§6.8.6). It says whether it must be answered
// at once, and why the router is lost if it was there before.
func (m *bfdMachine) hear(h *packet.BFDHeader) (answer bool, lost string) {
	if !m.meant(h) {
		return false, ""
	}
	m.theirs, m.multiplier = h.MyDiscriminator, h.DetectTimeMultiplier
	m.transmit, m.receive = microseconds(h.DesiredMinTxInterval), microseconds(h.RequiredMinRxInterval)
	if h.Final {
		m.polling = false
	}
	switch {
	case switchedOff(h) && m.state != packet.StateDown:
		m.fall(packet.DiagnosticNeighborSignaledSessionDown, "the router has switched it off")
	case h.State == packet.StateDown && m.state == packet.StateUp:
		m.fall(packet.DiagnosticNeighborSignaledSessionDown, "the router says that it does not hear this node")
		lost = "BFD: " + m.reason
	case h.State == packet.StateDown && m.state == packet.StateDown && !switchedOff(h):
		m.state = packet.StateInit
	case h.State == packet.StateInit && m.state != packet.StateUp,
		h.State == packet.StateUp && m.state == packet.StateInit:
		m.state, m.diagnostic, m.polling = packet.StateUp, packet.DiagnosticNoDiagnostic, true
	}
	return h.Poll, lost
}

// switchedOff: somebody has switched BFD off on the router, which is no failure
// (RFC 5882 §3.2). Some say so by the diagnostic only.
func switchedOff(h *packet.BFDHeader) bool {
	return h.State == packet.StateAdminDown || h.State == packet.StateDown && h.Diagnostic == packet.DiagnosticAdministrativelyDown
}

// meant tells whether a packet is for this session and makes sense.
func (m *bfdMachine) meant(h *packet.BFDHeader) bool {
	if h.Version != 1 || h.DetectTimeMultiplier == 0 || h.MyDiscriminator == 0 {
		return false
	}
	if h.YourDiscriminator == 0 {
		return h.State == packet.StateDown || h.State == packet.StateAdminDown
	}
	return h.YourDiscriminator == m.mine
}

func microseconds(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }

func (m *bfdMachine) fall(why packet.DiagnosticType, reason string) {
	m.state, m.diagnostic, m.polling, m.reason = packet.StateDown, why, false, reason
}

// silence is after how long without a packet the router is lost, 0 while there is
// nothing to lose (§6.8.4).
func (m *bfdMachine) silence() time.Duration {
	if m.state != packet.StateInit && m.state != packet.StateUp {
		return 0
	}
	return time.Duration(m.multiplier) * max(m.conf.Receive, m.transmit)
}

// expire is called when the router was silent for so long. It says why the router
// is lost, if it was there before.
func (m *bfdMachine) expire() (lost string) {
	reason := fmt.Sprintf("nothing heard from the router for %s", m.silence())
	if m.state == packet.StateUp {
		lost = "BFD: " + reason
	}
	m.fall(packet.DiagnosticControlDetectionTimeExpired, reason)
	m.theirs = 0
	return lost
}

// pause is how long to wait before the next packet, 0 for ever, with the jitter
// that keeps sessions from beating in step (§6.8.7).
func (m *bfdMachine) pause() time.Duration {
	if m.conf.Passive && m.theirs == 0 || m.receive == 0 {
		return 0
	}
	return time.Duration(float64(max(m.wish(), m.receive)) * (0.75 + rand.Float64()*0.15))
}

// wish is how often we would like to send.
func (m *bfdMachine) wish() time.Duration {
	if m.state != packet.StateUp {
		return max(m.conf.Transmit, slow)
	}
	return m.conf.Transmit
}

// say is the packet to send now; final answers a poll.
func (m *bfdMachine) say(final bool) *packet.BFDHeader {
	return &packet.BFDHeader{
		Version: 1, Diagnostic: m.diagnostic, State: m.state,
		Poll: m.polling && !final, Final: final,
		DetectTimeMultiplier: m.conf.Multiplier,
		MyDiscriminator:      m.mine, YourDiscriminator: m.theirs,
		DesiredMinTxInterval: uint32(m.wish().Microseconds()), RequiredMinRxInterval: uint32(m.conf.Receive.Microseconds()),
	}
}

// farewell says that silence follows, and is meant.
func (m *bfdMachine) farewell() *packet.BFDHeader {
	m.state, m.diagnostic, m.polling = packet.StateAdminDown, packet.DiagnosticAdministrativelyDown, false
	return m.say(false)
}
