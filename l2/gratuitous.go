package l2

import (
	"slices"
	"time"
)

// The delays between announcements, which are repeated after 0.1, 0.5, 1.5, 3.5 and 7.5 s. The second covers a lost
// frame; the third and fourth Linux before 4.12, which ignores a second update within a second
// (locktime); the last switches whose port has just come up.
const (
	again1Delay = 100 * time.Millisecond
	again2Delay = 400 * time.Millisecond
	again3Delay = time.Second
	again4Delay = 2 * time.Second
	again5Delay = 4 * time.Second
)

// startAnnouncing schedules the announcements of x on sockets.
func (s *phases) startAnnouncing(x *address, sockets []*packetSocket, now time.Time) {
	for i, c := range x.claims {
		if slices.Contains(sockets, c.socket) {
			t := &timer{address: x, socket: c.socket, stage: announce}
			x.claims[i].timer = t
			s.schedule.add(t, now)
		}
	}
}

// announceOn announces an address on a socket, in the forms of its stage.
func (s *phases) announceOn(t *timer) (frames int) {
	addr, mac := t.address.want.Addr, t.socket.claims.mac
	if t.stage != confirm {
		frames += s.gratuitous(t.socket, announcement(addr, mac))
	}
	if t.stage != announce && addr.Is4() {
		frames += s.gratuitous(t.socket, confirmation(addr, mac))
	}
	if t.stage == refresh {
		frames *= refreshCost
	}
	return frames
}

func (s *phases) gratuitous(p *packetSocket, out packet) int {
	if s.send(p, out) {
		s.metrics.gratuitous.WithLabelValues(p.key.protocol.name).Inc()
	}
	return 1
}
