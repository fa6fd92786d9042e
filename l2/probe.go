package l2

import (
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

// The delays of probing, each after the previous stage.
//
// RFC 5227 §1.1 delays probing by up to a second, sends three probes 1 to 2 s apart, and
// waits 2 s after the last: up to 7 s without an address for a Service. Its §2.2 allows
// shorter times on faster networks, without numbers. Hosts answer within milliseconds,
// power-saving ones within a few beacons of 0.1 s, and a slower host is detected by its
// next packet. IPv6 uses the same times (RFC 4862 §5.1 has one probe and a second).
//
// The first milliseconds find the hosts that are awake. From then on requests are answered,
// as by an optimistic address (RFC 4429): see address.early.
const (
	listenedDelay = 20 * time.Millisecond
	probe2Delay   = 180 * time.Millisecond
	probe3Delay   = 200 * time.Millisecond
	passedDelay   = 300 * time.Millisecond
)

// startProbing schedules the first probe of an address. If another host claims the address,
// handleConflict gives it up.
func (s *phases) startProbing(x *address, now time.Time) {
	s.enter(x, Probing, now)
	x.early, x.asked = false, nil
	s.recall(x, now)
	x.timer = &timer{address: x, stage: probe1}
	s.schedule.add(x.timer, now)
}

// runProbing runs a timer of an address that is probed: it sends a probe, or acts on the silence
// after one.
func (s *phases) runProbing(t *timer, now time.Time) (frames int) {
	x := t.address
	switch t.stage {
	case listened:
		if wait := s.schedule.delays[listened]; now.Sub(t.due) > wait {
			// This node had no processor, and a reply may wait to be read.
			s.schedule.add(t, now)
			return 0
		}
		frames = s.answerEarly(x, now)
	case passed:
		x.timer, x.needsProbe = nil, false
		s.advance(x, nil, now)
		notify.Changed(s.changed)
		return 0
	default: // probe1, probe2, probe3
		frames = s.sendProbes(x)
	}
	s.schedule.follow(t, now)
	return frames
}

// probe asks for addr and announces nothing (RFC 5227 §2.1.1, RFC 4862 §5.4.2).
func probe(addr netip.Addr, mac MAC) packet {
	p := packet{op: opRequest, from: mac, to: broadcast, sender: unspecified[addr.Is4()], target: addr}
	if addr.Is6() {
		p.to = groupMAC(solicitedNode(addr))
	}
	return p
}

// sendProbes sends a probe on each socket of an address.
func (s *phases) sendProbes(x *address) (frames int) {
	for _, c := range x.claims {
		s.send(c.socket, probe(x.want.Addr, c.socket.claims.mac))
		s.metrics.probes.WithLabelValues(c.socket.key.protocol.name).Inc()
	}
	return len(x.claims)
}
